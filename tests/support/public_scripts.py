"""Public launch scripts, shrunk, trained inside a rank of a test's pool.

python -m tests.support.public_scripts shrunk_dense [s0105 ...]     # trains all of them, or these: a line for each

python -m tests.support.public_scripts shrunk_experts              # 15 with experts, 23 of latent attention, 25 dense
"""

import json
import math
import os
import sys
from collections.abc import Sequence
from functools import cache, reduce
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pytest

from parallel_core.data.preprocess.command_line import main as preprocess
from tests.support.assets import asset
from tests.support.distributed import run
from tests.support.engine import config_of, job
from tests.support.instruction import CASES, flags
from tests.support.tokenizer_records import records, unpack


class Step(NamedTuple):
    """Figures of a training step that ranks report."""

    loss: float
    gradient_norm: float
    weights: float
    """The sum of this rank's weights after the step."""


def train_script(backend, argv: Sequence[str], folder: Path) -> list[Step]:
    """Train a command line as examples/gpt/pretrain_gpt.py does; the figures of each step."""
    from parallel_core.data.datasets import datasets_provider
    from pynative.parameter import whole_parameters
    from pynative.training.callbacks import Callback
    from pynative.training.training import pretrain
    from pynative.transformer.gpt_model import GPTModel

    found = []

    class Steps(Callback):
        def on_step_end(self, state):
            weights = sum(float(p.asnumpy().astype("float64").sum()) for p in whole_parameters(state.model))
            found.append(Step(state.result.loss, state.result.gradient_norm, weights))

    os.chdir(folder)
    config = config_of(argv, backend.world_size)
    provider = datasets_provider(config)
    with job(backend, config):
        pretrain(
            provider,
            lambda **stage: GPTModel(config.model_config, **stage),
            all_config=config,
            callbacks=[Steps()],
        )
    return found


def scripts(name: str) -> list[dict]:
    """The scripts in tests/assets/megatron_flags/{name}.json, each with "id", "nproc" and "argv"."""
    return json.loads(asset(f"megatron_flags/{name}.json").read_text())


@cache
def _files() -> TemporaryDirectory:
    """A folder with text_text_document of text and a data set of conversations, both made with one tokenizer."""
    folder = TemporaryDirectory()
    place, named = Path(folder.name), ("--tokenizer-type", "PretrainedFromHF", "--tokenizer-name-or-path")
    rows = "".join(json.dumps({"text": text}) + "\n" for text in records()["texts"].values())
    (place / "text.jsonl").write_text(rows, encoding="utf-8")
    unpack(place / "folders")
    written = ("--input", str(place / "text.jsonl"), "--output-prefix", str(place / "text"), "--append-eod")
    preprocess([*written, *named, str(place / "folders" / "hf_qwen2")])
    preprocess(flags(CASES["preprocess"]["alpaca.qwen"], place))
    return folder


def with_files(argv: Sequence[str]) -> list[str]:
    """The words with paths in place of <tokenizers>, <text> and <instructions>."""
    place = Path(_files().name)
    places = {"<tokenizers>": "folders", "<text>": "text_text_document", "<instructions>": "data"}
    return [reduce(lambda word, name: word.replace(name, str(place / places[name])), places, word) for word in argv]


def check_steps(argv: Sequence[str], ranks: Sequence[Sequence[Step]], ids: int = 500) -> None:
    """Check that all ranks report one loss, near a uniform guess among `ids`, and that each step changes the weights;
    the first ones of float16 may overflow Megatron's initial loss scale and change nothing."""
    for steps in ranks:
        assert len(steps) == 2 and [step[:2] for step in steps] == [step[:2] for step in ranks[0]]
        first, second = steps
        assert first.loss == pytest.approx(math.log(ids), abs=0.3) and second.loss == pytest.approx(first.loss, abs=0.1)
        is_skipped = "--fp16" in argv and not math.isfinite(second.gradient_norm)
        assert (first.weights == second.weights) == is_skipped
        assert is_skipped or math.isfinite(second.gradient_norm)


def main(name: str, *ids: str) -> None:
    """Train these scripts of a table, or all, one after another, and print a line for each: losses and norms of its
    steps, or its error."""
    for script in sorted(scripts(name), key=lambda script: script["nproc"]):
        if ids and script["id"] not in ids:
            continue
        try:
            with TemporaryDirectory() as folder:
                argv = with_files(script["argv"])
                ranks = run(script["nproc"], train_script, argv, Path(folder))
            check_steps(argv, ranks, ids=500 if "--vocab-size" in argv else 3000)
            said = f"trains: {[(step.loss, step.gradient_norm) for step in ranks[0]]}"
        except Exception as error:  # one failing script must not end the report
            said = f"{type(error).__name__}: {error}"
        print(script["id"], script["nproc"], said, flush=True)


if __name__ == "__main__":
    from tests.support.public_scripts import main as by_name  # ranks import functions by their module's name

    by_name(*sys.argv[1:])
