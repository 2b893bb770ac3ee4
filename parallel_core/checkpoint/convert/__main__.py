"""`python -m mapping convert --input DIR --output DIR [--to native|hf|megatron]`.

From HuggingFace's, Megatron-LM's and our checkpoints to any of them; most tensors are read when they are written. The
source is held against its checksums first, where it has any. The target is read again before it gets its name, unless
--no-verify is given: it must be the same network, bit by bit, and the engine must compute the same logits of a small
prompt, up to rounding (--logits says when).
"""

import argparse
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from parallel_core.checkpoint.commit import checkpoint_name
from parallel_core.checkpoint.convert import formats, logits
from parallel_core.checkpoint.convert.formats import damages
from parallel_core.checkpoint.convert.huggingface.tables import FAMILIES
from parallel_core.checkpoint.convert.huggingface.tokenizer import files_in
from parallel_core.checkpoint.convert.huggingface.write import write_huggingface
from parallel_core.checkpoint.convert.megatron.write import Layout, write_legacy
from parallel_core.checkpoint.convert.model import Model, padded
from parallel_core.checkpoint.convert.native import write_native
from parallel_core.checkpoint.convert.parameters import differences
from parallel_core.findings import ConfigError, Finding, exit_code
from parallel_core.system.command_line import command_line, program


def convert(options: argparse.Namespace) -> list[str]:
    """Convert a checkpoint; lines that report it. options: as `parser` reads them. A target that is found to differ
    from the source is removed. Raises ValueError then, and if something does not fit; ValueError or OSError if a file
    cannot be read or written."""
    wrong = list(findings(options))
    if wrong:
        raise ConfigError(wrong)
    source, folder = formats.recognise(options.input, options.source, options.ckpt_step)
    damaged = list(damages(folder))
    if damaged:  # the output gets new checksums, which would hide the damage
        raise ValueError("\n".join(damaged))
    model = formats.read(folder, source.kind, optimizer=not options.no_load_optim and options.to != "hf")
    taken = options.output / checkpoint_name(model.position.iteration)
    if options.to == "native" and taken.exists():
        raise ValueError(f"--output {options.output}: has {taken.name} already; name another folder")
    model = _with_vocabulary(model, options)
    tokenizer = options.tokenizer_model or (folder if source.kind == "hf" else None)
    lines = [f"{folder} ({source.name} format): {len(model.weights)} weights" + _states(model)]
    lines += [f"not taken over, about {what}: {', '.join(keys)}" for what, keys in model.left_out.items()]

    def check(written: Path) -> None:
        try:
            lines.extend([] if options.no_verify else _verified(model, folder, written, options))
        except ValueError as error:
            rule = "what was written is not what was read, and is removed"
            raise ValueError(f"{options.output}: {rule}: {error}") from error

    written = _write(model, options, tokenizer, check)
    return [*lines, *_of_tokenizer(tokenizer, options.to), f"written: {written}"]


def _with_vocabulary(model: Model, options: argparse.Namespace) -> Model:
    """The model with as many ids (--vocab-size), and rows for them (padding), as the options ask for. Raises ValueError
    for more ids than rows, also than those of a hash layer's table."""
    if options.vocab_size is not None:
        if options.vocab_size > model.vocab_size:
            raise ValueError(f"--vocab-size {options.vocab_size}: the checkpoint has {model.vocab_size} rows; lower it")
        model = model.with_ids(options.vocab_size)
    tensor = options.tensor_model_parallel_size or 1
    if options.to == "native" and (options.make_vocab_size_divisible_by or tensor > 1):
        step = options.make_vocab_size_divisible_by or model.network.get("make_vocab_size_divisible_by") or 1
        return model.with_rows(padded(model.unpadded_vocab_size, step, tensor))
    return model


def _verified(model: Model, source: Path, written: Path, options: argparse.Namespace) -> list[str]:
    """Lines that say in which respects the written checkpoint is equal to the source. Raises ValueError if it is
    not."""
    problems = differences(model, formats.read(written, options.to), states=options.to != "hf")
    if problems:
        raise ValueError("\n".join(problems[:20]))
    lines = ["read again: the same network, equal bit by bit"]
    if options.logits == "no":
        return lines
    reason = logits.skipped(model) if options.logits == "auto" else None
    if reason is not None:
        return [*lines, f"logits of a small prompt: not compared, {reason}"]
    try:
        found = logits.difference(model, source, written)
    except logits.Unfinished as error:
        if options.logits == "yes":
            raise ValueError(f"logits of a small prompt: {error}; --logits no leaves them out") from error
        return [*lines, f"logits of a small prompt: not compared, {error}"]
    return [*lines, f"logits of a small prompt: equal, the largest difference is {found:.1e} of the largest logit"]


def _states(model: Model) -> str:
    if model.adapters:
        return f", {model.adapters} adapters merged into theirs, without optimizer states"
    return f", optimizer states {', '.join(model.states)}" if model.states else ", without optimizer states"


def _of_tokenizer(folder: Path | None, kind: str) -> list[str]:
    """A line about the tokenizer files of `folder`, which --to hf copies and our format and Megatron's lack; none if
    there is nothing to say. kind: the value of --to."""
    names = files_in(folder)
    if kind == "hf":
        where = "" if folder is None else f"{folder} has none; "
        missing = f"no tokenizer was copied: {where}--tokenizer-model DIR copies one into a new --output"
        unnamed = names and not {"tokenizer.json", "tokenizer_config.json"} & {*names}
        note = "; without tokenizer_config.json, which names its class, --tokenizer-type has to" if unnamed else ""
        return [f"copied as they are: {', '.join(names)}{note}" if names else missing]
    return [f"not copied: {', '.join(names)}; --to hf later takes them by --tokenizer-model {folder}"] if names else []


def _write(model: Model, options: argparse.Namespace, tokenizer: Path | None, check: Callable[[Path], None]) -> Path:
    """Write the target and return its path. It gets its name after `check` of its files; if that raises, nothing is
    left."""
    output: Path = options.output.resolve()
    if options.to == "native":
        return write_native(model, output, check)
    partial = output.with_name(f".{output.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        if options.to == "hf":
            write_huggingface(model, partial, options.huggingface_model_type, tokenizer)
        else:
            write_legacy(model, partial, _layout(options), options.make_vocab_size_divisible_by)
        check(partial)
        if output.exists():
            output.rmdir()
        partial.rename(output)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return output


def _layout(options: argparse.Namespace) -> Layout:
    return Layout(
        options.tensor_model_parallel_size or 1,
        options.pipeline_model_parallel_size or 1,
        options.num_layers_per_virtual_pipeline_stage,
        options.expert_model_parallel_size or 1,
        options.expert_tensor_parallel_size,
    )


def _size(text: str) -> int:
    """A whole number from 1 on. Raises argparse.ArgumentTypeError for other text."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def parser(description: str | None = None) -> argparse.ArgumentParser:
    """The parser of the command line. description: text that --help shows above the flags."""
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
            "choices": [*dict.fromkeys(family.model_type for family in FAMILIES)],
            "help": "the family; by default the one that the settings say",
        },
        "--tokenizer-model": {
            "type": Path,
            "help": "a folder of HuggingFace's whose tokenizer and generation settings are copied as well; of a "
            "HuggingFace --input they are in any case",
        },
    },
}
"""Targets (--to) -> flags that act for these alone -> further arguments of `add_argument`."""


def findings(options: argparse.Namespace) -> Iterator[Finding]:
    """Findings for options that do not go together or with the target, a --tokenizer-model that is no folder, and an
    --output that is --input, is a file, or is a folder that is not empty (which --to native allows)."""
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
    tensor, of_experts = options.tensor_model_parallel_size or 1, options.expert_tensor_parallel_size
    if options.to == "megatron" and of_experts is not None and tensor % of_experts:
        rule = f"must divide --tensor-model-parallel-size {tensor}: else no file has some parts of the experts"
        yield Finding("--expert-tensor-parallel-size", of_experts, rule, "change one of them")
    output = options.output.resolve()
    if output == options.input.resolve():
        yield Finding("--output", options.output, "is --input, too", "name a new folder")
    elif output.exists() and not output.is_dir():
        yield Finding("--output", options.output, "is no folder", "name a new one")
    elif options.to != "native" and output.exists() and any(output.iterdir()):
        yield Finding("--output", options.output, "is not empty", "name a new folder")


def main(argv: list[str] | None = None) -> int:
    """Run the command, and return its exit code: 0, or 1 after a ValueError or OSError, which is printed. argparse
    itself ends the process after --help (0) and for wrong arguments (2)."""
    options = parser(__doc__).parse_args(argv)
    return exit_code(lambda: print("\n".join(convert(options))))


if __name__ == "__main__":
    sys.exit(main())
