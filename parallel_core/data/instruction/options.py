"""The flags of preprocessing with a handler, most of them of MindSpeed-LLM's `preprocess_data.py`."""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parallel_core.data.instruction.handlers import HANDLERS, REFUSED, Handler
from parallel_core.data.instruction.mixing import MIX_STRATEGIES
from parallel_core.data.instruction.records import ON_BAD_RECORD
from parallel_core.data.instruction.templates import OWN_TEMPLATE, TABLE

DEFAULT_HANDLER = "GeneralPretrainHandler"
"""The handler with --tokenizer-type PretrainedFromHF and no --handler-name."""

NO_EFFECT = {
    "--n-subs": (int, "parts are joined to what one go writes"),
    "--log-interval": (int, "progress is shown by time"),
    "--cache-dir": (str, "nothing is cached"),
    "--dataset-impl": (str, "data are always mapped"),
    "--make-vocab-size-divisible-by": (int, "the vocabulary is padded in training"),
    "--pad-vocab-size-to": (int, "the vocabulary is padded in training"),
    "--streaming": (bool, "records are always read one by one"),
    "--overwrite-cache": (bool, "nothing is cached"),
    "--keep-newlines": (bool, "is a part of --split-sentences"),
}
"""Flags that change nothing in the files -> type of the value (bool: a switch), and the reason."""
_REFUSALS = {
    "--hf-datasets-params": (str, "load_dataset of a hub is not used; give files with --input"),
    "--script-data-dir": (str, "scripts that load data are not run; give files with --input"),
    "--obf-seed-content": (str, "data are not obfuscated; leave it out"),
    "--data-obfuscation": (bool, "data are not obfuscated; leave it out"),
    "--split-sentences": (bool, "each text is one sequence; leave it out, or split the text before"),
}
"""Flags that are refused -> type of the value (bool: a switch), and the reason."""


@dataclass(frozen=True, kw_only=True)
class InstructionOptions:
    """The options of a run of preprocessing with a handler, named as its flags. Raises ValueError, with all that it
    finds, for a seq_length below 2, for max_samples, workers or pad_to_multiple_of below 1, for --prompt-type, --pack,
    --neat-pack, --seq-length and --map-keys that do not fit the handler or each other, and for a folder of
    --output-prefix that does not exist; with a handler that is unknown or refused that mistake alone. Other values are
    not checked here."""

    input: str
    output_prefix: Path
    handler_name: str = DEFAULT_HANDLER
    prompt_type: str | None = None
    prompt_type_path: Path = TABLE
    map_keys: dict[str, Any] | None = None
    json_keys: tuple[str, ...] = ("text",)
    append_eod: bool = False
    seq_length: int | None = None
    pack: bool = False
    neat_pack: bool = False
    pad_to_multiple_of: int = 1
    enable_thinking: bool | None = None
    drop_thinking: bool = True
    dataset_additional_keys: tuple[str, ...] = ()
    dataset_dir: str | None = None
    mix_strategy: str = "concat"
    interleave_probs: str | None = None
    max_samples: int | None = None
    seed: int = 1234
    workers: int = 1
    on_bad_record: str = "reference"
    restart: bool = False
    """Whether to begin anew where an earlier run was stopped, instead of going on."""

    @property
    def handler(self) -> Handler:
        """The handler that --handler-name selects."""
        return HANDLERS[self.handler_name]

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the data sets that are written."""
        handler = self.handler
        of_handler = self.json_keys if handler.keys is None else handler.keys
        return (*of_handler, *self.dataset_additional_keys) if self.handler_name.startswith("R1") else of_handler

    @property
    def prefix(self) -> Path:
        """The prefix of the data sets' files: --output-prefix, with `_packed` behind it unless the handler writes
        running text (its name ends with PretrainHandler)."""
        is_running_text = self.handler_name.endswith("PretrainHandler")
        return self.output_prefix if is_running_text else Path(f"{self.output_prefix}_packed")

    def __post_init__(self) -> None:
        mistakes = self._mistakes()
        if mistakes:
            raise ValueError("; ".join(mistakes))

    def _mistakes(self) -> list[str]:
        name, found = self.handler_name, []
        if name in REFUSED:
            return [f"--handler-name {name}: {REFUSED[name]}"]
        if name not in HANDLERS:
            return [f"--handler-name {name} is not available; choose one of {', '.join(HANDLERS)}"]
        handler = self.handler
        if handler.has_template and self.prompt_type is None:
            found.append(f"--handler-name {name} needs --prompt-type: a template, or {OWN_TEMPLATE}")
        if not handler.has_template and self.prompt_type is not None and name != "HunyuanInstructionHandler":
            found.append(
                f"--prompt-type {self.prompt_type}: --handler-name {name} writes without a template; remove it"
            )
        if self.neat_pack and not self.pack:
            found.append("--neat-pack needs --pack")
        if self.pack and self.keys != ("input_ids", "attention_mask", "labels"):
            found.append(f"--pack: --handler-name {name} writes no conversations with labels; remove it")
        if self.pack and self.seq_length is None:
            found.append("--pack needs --seq-length, the length of a pack")
        if self.map_keys is not None and not handler.map_keys:
            found.append(f"--map-keys: --handler-name {name} has fixed columns; remove it")
        if not self.output_prefix.absolute().parent.is_dir():
            found.append(f"--output-prefix {self.output_prefix}: the folder does not exist; make it")
        numbers = {"seq_length": 2, "pad_to_multiple_of": 1, "max_samples": 1, "workers": 1}
        for field, least in numbers.items():
            value = getattr(self, field)
            if value is not None and value < least:
                found.append(f"--{field.replace('_', '-')} {value} must be at least {least}")
        return found

    @classmethod
    def of(cls, args: argparse.Namespace) -> "InstructionOptions":
        """The options of parsed flags. Raises ValueError as the class and, before that, for flags of MindSpeed-LLM that
        are refused, such as --split-sentences."""
        refused = [flag for flag in _REFUSALS if getattr(args, flag.strip("-").replace("-", "_"))]
        if refused:
            raise ValueError("; ".join(f"{flag}: {_REFUSALS[flag][1]}" for flag in refused))
        if args.reasoning_effort == "max":
            raise ValueError("--reasoning-effort max: its text is not known here; leave it out")
        given = {name: getattr(args, name) for name in cls.__dataclass_fields__ if getattr(args, name) is not None}
        for name, kind in {"json_keys": tuple, "dataset_additional_keys": tuple, "prompt_type_path": Path}.items():
            if name in given:
                given[name] = kind(given[name])
        return cls(**{**given, "input": str(args.input), "output_prefix": Path(args.output_prefix)})


def add_instruction_flags(parser: argparse.ArgumentParser) -> None:
    """Add flags of preprocessing with a handler to a parser, those without effect and those that are refused included;
    not --input, --output-prefix, --json-keys, --append-eod, --workers, --restart and the tokenizer's flags."""
    group = parser.add_argument_group("instruction data, as MindSpeed-LLM's preprocess_data.py")
    group.add_argument("--handler-name", help=", ".join(HANDLERS))
    group.add_argument("--prompt-type", help=f"a template of --prompt-type-path; {OWN_TEMPLATE}: the tokenizer's own")
    group.add_argument("--prompt-type-path", type=Path, help="JSON of templates (default: 34 of this package)")
    group.add_argument("--map-keys", type=_object, help='columns by their role, as \'{"prompt": "question"}\'')
    group.add_argument("--enable-thinking", type=_truth, help="true, false or none: thoughts in answers")
    group.add_argument("--drop-thinking", type=_truth, help="deepseek4: leave out thoughts of earlier turns")
    group.add_argument("--reasoning-effort", choices=("high", "max"), help="deepseek4: high writes nothing")
    group.add_argument("--seq-length", type=int, help="tokens of a sample: what is longer is cut or left out")
    group.add_argument("--pack", action="store_true", help="several conversations in a sample")
    group.add_argument("--neat-pack", action="store_true", help="with their numbers in the attention mask")
    group.add_argument("--pad-to-multiple-of", type=int, help="running text: pad each to a multiple of it, plus one")
    group.add_argument("--dataset-additional-keys", nargs="*", help="of R1 handlers: further data sets, such as labels")
    group.add_argument("--dataset-dir", help="folder with dataset_info.json, for LlamaFactoryInstructionHandler")
    group.add_argument("--mix-strategy", choices=MIX_STRATEGIES, help="how its data sets are mixed")
    group.add_argument("--interleave-probs", help="shares of its data sets, separated by commas")
    group.add_argument("--max-samples", type=int, help="read so many records of each of its data sets")
    group.add_argument("--seed", type=int, help="of --interleave-probs (default: 1234)")
    rules = "; ".join(f"{name}: {rule}" for name, rule in ON_BAD_RECORD.items())
    group.add_argument("--on-bad-record", choices=tuple(ON_BAD_RECORD), help=f"{rules} (default: reference)")
    for flag, (kind, reason) in (NO_EFFECT | _REFUSALS).items():
        shown = f"without effect: {reason}" if flag in NO_EFFECT else argparse.SUPPRESS
        switch: dict[str, Any] = {"action": "store_true"} if kind is bool else {"type": kind}
        group.add_argument(flag, help=shown, **switch)


def _truth(text: str) -> bool | None:
    values: dict[str, bool | None] = {"true": True, "false": False, "none": None}
    if text.lower() not in values:
        raise argparse.ArgumentTypeError(f"must be true, false or none, not {text!r}")
    return values[text.lower()]


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be a JSON object: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object, not {text!r}")
    return value
