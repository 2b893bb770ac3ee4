"""The command line of `python -m mapping convert`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from parallel_core.checkpoint.convert import formats, logits
from parallel_core.checkpoint.convert.huggingface.tables import FAMILIES
from parallel_core.findings import Finding
from parallel_core.system.command_line import command_line, program


def _size(text: str) -> int:
    """A number from one on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def parser(description: str | None = None) -> argparse.ArgumentParser:
    """What can be said."""
    made = command_line(description, program("convert"))
    made.add_argument("--input", type=Path, required=True, help="a checkpoint's folder, or what --save was")
    made.add_argument("--output", type=Path, required=True, help="a new folder; of our format also one that --save was")
    made.add_argument("--from", dest="source", choices=("auto", *formats.KINDS), default="auto", help="of which tool")
    made.add_argument("--to", choices=formats.KINDS, default="native", help="for which tool")
    made.add_argument("--ckpt-step", type=int, help="this iteration instead of the latest")
    made.add_argument("--no-load-optim", action="store_true", help="leave the optimizer's state out")
    made.add_argument("--no-verify", action="store_true", help="do not read again what was written")
    made.add_argument(
        "--logits",
        choices=("auto", "yes", "no"),
        default="auto",
        help="compare logits of a small prompt as well; auto: of models that fit into "
        f"{logits.MOST_BYTES >> 30} GiB, if the engine is installed",
    )
    made.add_argument("--vocab-size", type=_size, help="ids of the tokenizer; Megatron's checkpoints do not say it")
    for group, names in _TARGETS.items():
        flags = made.add_argument_group(f"--to {' and '.join(group)}")
        for flag, arguments in names.items():
            flags.add_argument(flag, **arguments)
    return made


_TARGETS: dict[tuple[str, ...], dict[str, dict[str, Any]]] = {
    ("native", "megatron"): {
        "--make-vocab-size-divisible-by": {
            "type": _size,
            "help": "pad the vocabulary to a multiple of this and of --tensor-model-parallel-size",
        },
        "--tensor-model-parallel-size": {"type": _size, "help": "ranks that share each layer"},
    },
    ("megatron",): {
        "--pipeline-model-parallel-size": {"type": _size, "help": "stages of the pipeline"},
        "--num-layers-per-virtual-pipeline-stage": {"type": _size, "help": "layers of one of a stage's parts"},
        "--expert-model-parallel-size": {"type": _size, "help": "ranks that share the experts of a layer"},
        "--expert-tensor-parallel-size": {"type": _size, "help": "ranks that share each expert"},
    },
    ("hf",): {
        "--huggingface-model-type": {
            "choices": [family.model_type for family in FAMILIES],
            "help": "the family; by default the one that the settings say",
        },
        "--tokenizer-model": {
            "type": Path,
            "help": "a folder of HuggingFace's whose tokenizer and generation settings are copied as well; of a "
            "HuggingFace --input they are in any case",
        },
    },
}
"""Flags that say something of some targets alone, and how they are read."""


def findings(options: argparse.Namespace) -> Iterator[Finding]:
    """What does not go together."""
    for targets, flags in _TARGETS.items():
        for flag in flags if options.to not in targets else ():
            value = getattr(options, flag.removeprefix("--").replace("-", "_"))
            if value is not None:
                rule = f"says nothing of a checkpoint --to {options.to}"
                yield Finding(flag, value, rule, f"remove it, or convert --to {' or '.join(targets)}")
    if options.no_verify and options.logits == "yes":
        rule = "compares what was written, which --no-verify does not read"
        yield Finding("--logits", "yes", rule, "leave one of them out")
    tokenizer = options.tokenizer_model
    if tokenizer is not None and not tokenizer.is_dir():
        yield Finding("--tokenizer-model", tokenizer, "is no folder", "name a model's folder")
    output = options.output.resolve()
    if output == options.input.resolve():
        yield Finding("--output", options.output, "is --input, too", "name a new folder")
    elif output.exists() and not output.is_dir():
        yield Finding("--output", options.output, "is no folder", "name a new one")
    elif options.to != "native" and output.exists() and any(output.iterdir()):
        yield Finding("--output", options.output, "is not empty", "name a new folder")
