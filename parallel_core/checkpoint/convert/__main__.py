"""`python -m mapping convert --input DIR --output DIR [--to native|hf|megatron]`.

From HuggingFace's, Megatron-LM's and our checkpoints to any of them, one tensor in memory at a time. The source is held
against its checksums first. What was written is read again before it gets its name: it must be the same network, bit by
bit, and the engine must compute the same logits of a small prompt.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from parallel_core.checkpoint.commit import checkpoint_name
from parallel_core.checkpoint.convert import command_line, formats, logits
from parallel_core.checkpoint.convert.checksums import damages
from parallel_core.checkpoint.convert.huggingface.tokenizer import files_in
from parallel_core.checkpoint.convert.huggingface.write import write_huggingface
from parallel_core.checkpoint.convert.megatron.write import Layout, write_legacy
from parallel_core.checkpoint.convert.model import Model, padded
from parallel_core.checkpoint.convert.native import write_native
from parallel_core.checkpoint.convert.verify import differences
from parallel_core.findings import ConfigError, exit_code


def convert(options: argparse.Namespace) -> list[str]:
    """Convert; lines that say what was done. Raises ValueError, and leaves no target, if something does not fit."""
    wrong = list(command_line.findings(options))
    if wrong:
        raise ConfigError(wrong)
    source, folder = formats.recognise(options.input, options.source, options.ckpt_step)
    damaged = list(damages(folder))
    if damaged:  # what is written gets checksums of its own, which would vouch for it
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
    """The model with as many ids, and as many rows for them, as were asked for."""
    if options.vocab_size is not None:
        if options.vocab_size > model.vocab_size:
            raise ValueError(f"--vocab-size {options.vocab_size}: the checkpoint has {model.vocab_size} rows; lower it")
        model.network["unpadded_vocab_size"] = options.vocab_size
    tensor = options.tensor_model_parallel_size or 1
    if options.to == "native" and (options.make_vocab_size_divisible_by or tensor > 1):
        step = options.make_vocab_size_divisible_by or model.network.get("make_vocab_size_divisible_by") or 1
        return model.with_rows(padded(model.unpadded_vocab_size, step, tensor))
    return model


def _verified(model: Model, source: Path, written: Path, options: argparse.Namespace) -> list[str]:
    """Lines that say in what the written checkpoint is equal to the source. Raises ValueError if it is not."""
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
        return f", {model.adapters} adapters merged into theirs, no optimizer state"
    return f", optimizer states {', '.join(model.states)}" if model.states else ", no optimizer state"


def _of_tokenizer(folder: Path | None, kind: str) -> list[str]:
    """A line about a model's other files, which transformers reads and our format and Megatron's don't have."""
    names = files_in(folder)
    if kind == "hf":
        missing = "no tokenizer was copied: --tokenizer-model DIR copies one into a new --output"
        return [f"copied as they are: {', '.join(names)}" if names else missing]
    return [f"not copied: {', '.join(names)}; --to hf later takes them by --tokenizer-model {folder}"] if names else []


def _write(model: Model, options: argparse.Namespace, tokenizer: Path | None, check: Callable[[Path], None]) -> Path:
    """The target, which appears after a `check` of its files, or not at all."""
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


def main(argv: list[str] | None = None) -> int:
    """Run the command; 1 if it failed."""
    options = command_line.parser(__doc__).parse_args(argv)
    return exit_code(lambda: print("\n".join(convert(options))))


if __name__ == "__main__":
    sys.exit(main())
