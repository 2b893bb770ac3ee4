"""The mapping's result for each item of a document's YAML, JSON or flags."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mapping.explain import Outcome, outcomes
from mapping.flags import BY_NAME, IGNORED, MAPPED
from mapping.merge import Reading, Sources, resolve
from mapping.readers import yaml_file
from mapping.readers.earlier_keys import EARLIER
from mapping.reading import read
from parallel_core.config.tree import PUBLIC
from parallel_core.findings import Finding
from tests.support.printed.blocks import Block, blocks
from tests.support.printed.found import ACTS, MISSING, NOTHING, REFUSED, Found
from tests.support.printed.items import yaml_content

CONTEXT: dict[tuple[str, str], dict[str, Any]] = {
    ("000", "5"): {
        "moe_config": {"expert_num": 4},
        "model_config": {"num_layers": 8, "mtp_num_layers": 1, "position_embedding_type": "rope"},
    },
    ("001", "0"): {"model_config": {"num_layers": 64}, "parallel_config": {"pipeline_model_parallel_size": 16}},
    ("001", "1"): {
        "model_config": {"num_layers": 48},
        "parallel_config": {
            "pipeline_model_parallel_size": 5,
            "virtual_pipeline_model_parallel_size": 2,
            "num_layer_list": [[4, 5, 5, 5, 5], [5, 5, 5, 5, 4]],
        },
    },
    ("002", "5"): {"model_config": {"compute_dtype": "float16"}},
    ("003", "3"): {"training_config": {"load_checkpoint": "checkpoints"}},
}
"""(document, block) -> settings that the document's sentences add to the YAML block."""

MODEL = (
    "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 "
    "--vocab-size 512"
)
FLAGS = f"{MODEL} --train-iters 10"
"""A command line without the values that JSON blocks give."""
COMPANY = {"--num_train_epochs": "--max_train_samples 500", "--max_train_samples": "--num_train_epochs 1"}
"""Flag of a Trainer -> the flag printed with it that, together, gives the length of the training."""
BESIDE = {
    "1": "--micro-batch-size 1 --global-batch-size 6 --clip-grad 0.5 --lr 1e-3",
    "2": "--micro-batch-size 1",
    "3": "--micro-batch-size 1",
    "9": "--micro-batch-size 1 --lr 1e-3 --fp16",
    "11": "--lr 1e-3",
}
"""Number of a JSON block -> flags for the values that it does not give, or gives as `auto`."""
ELSE = "--micro-batch-size 1 --lr 1e-3"

AS_MEGATRON = {"hysteresis"}
"""Flags that fill the field that Megatron means by them, where a table of document 003 names another field."""


def yaml_reading(document: str, block: Block) -> Reading:
    """The reading of a YAML block on two data-parallel replicas; all YAML blocks of document 003 together are one
    file."""
    content = yaml_content(block.text)
    if document == "003":
        content = {}
        for part in blocks(document):
            if part.language == "yaml":
                content |= yaml_content(part.text)
    for section, keys in CONTEXT.get((document, block.number), {}).items():
        content[section] = keys | content.get(section, {})
    given, findings = yaml_file.values_of(content, "the document")
    sources = Sources(yaml=given, findings=findings, is_a_file=True)
    return resolve(replace(sources, world_size=2 * resolve(sources).args.world_size))


def json_reading(block: Block) -> Reading:
    """The reading of a JSON block as a DeepSpeed file, put between braces where it has none, beside flags for the
    rest."""
    whole = block.text if block.text.lstrip().startswith("{") else "{" + block.text + "}"
    flags = f"{FLAGS} {BESIDE.get(block.number, ELSE)}".split()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "deepspeed.json")
        path.write_text(whole, encoding="utf-8")
        return read([*flags, "--deepspeed-config", str(path)], world_size=1)


def flag_reading(words: list[str]) -> Reading:
    """The reading of a flag with its values (`words`) beside the flags that it is printed with."""
    beside = COMPANY.get(words[0], "--train-iters 10")
    return read([*MODEL.split(), *beside.split(), *ELSE.split(), *words], world_size=1)


def found(reading: Reading, item: str) -> Found:
    """The outcome of a key or flag `item` in a reading, from its findings, outcomes or notes."""
    about = [finding for finding in reading.findings if is_about(finding.flag, item)]
    if about:
        return _of_finding(about[0])
    said = [outcome for outcome in outcomes(reading) if is_about(outcome.flag, item)]
    said = [outcome for outcome in said if outcome.flag == item] or said
    if item.endswith("].type"):
        said += [outcome for outcome in outcomes(reading) if outcome.flag.startswith(item.removesuffix("type"))]
        said = [outcome for outcome in said if outcome.status == MAPPED and outcome.target] or said
    notes = [note for note in reading.notes if note.startswith(f"{item} auto: ")]
    if said:
        return _of_outcomes(said)
    if notes:
        return Found(ACTS, notes[0])
    return UNSAID


UNSAID = Found(MISSING, "nothing is said of it")
EMPTY = Found(NOTHING, "a key without a value says nothing")
"""The outcome of a known key that has no value."""


def is_about(name: str, item: str) -> bool:
    """Whether a reported name is the item or a key that contains it; `model.` before an item is not reported."""
    item = item.removeprefix("model.")
    return item == name or item.startswith((f"{name}.", f"{name}["))


def _of_finding(finding: Finding) -> Found:
    """`missing` for a finding that there is no such key, else `refused`."""
    if "there is no such" in finding.rule or "cannot be read" in finding.rule:
        return Found(MISSING, finding.rule)
    return Found(REFUSED, finding.rule)


def _of_outcomes(said: list[Outcome]) -> Found:
    """`no-op`, `refused` or `acts` of an item's outcomes, by the first one's status."""
    if said[0].status == IGNORED:
        return Found(NOTHING, said[0].reason)
    if said[0].status != MAPPED:
        return Found(REFUSED, said[0].reason)
    return Found(ACTS, ", ".join(sorted({_said(outcome) for outcome in said})))


def _said(outcome: Outcome) -> str:
    """The config field and value of an outcome, or its reason."""
    return f"{outcome.target} = {outcome.value}" if outcome.target else outcome.reason


def table_found(flag: str, key: str) -> Found:
    """The outcome of a row of document 003's tables: whether Megatron's flag fills the config path that the row
    gives."""
    rows = [BY_NAME[name] for on in ("--", "--no-") if (name := on + flag.replace("_", "-")) in BY_NAME]
    row = next((row for row in rows if row.status == MAPPED), rows[0] if rows else None)
    paths: Mapping[str, str] = {public: path for path, public in PUBLIC.items()}
    if row is not None and row.status == IGNORED and key in EARLIER:
        return Found(NOTHING, row.reason)
    if row is None or key not in paths:
        return Found(MISSING, f"{'' if row else 'no such flag '}{'' if key in paths else 'no such key'}".strip())
    if row.status != MAPPED:
        return Found(REFUSED, row.reason)
    if row.target != paths[key] and flag not in AS_MEGATRON:
        return Found(MISSING, f"fills {PUBLIC[row.target]}")
    return Found(ACTS, PUBLIC[row.target])
