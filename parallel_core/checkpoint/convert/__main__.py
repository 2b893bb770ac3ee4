"""`python -m parallel_core.checkpoint.convert --input DIR --output DIR [--to native|hf|megatron]`.

From HuggingFace's, Megatron-LM's and our checkpoints to any of them, one tensor in memory at a time. The source is held
against its checksums first. What was written is read again: it must be the same network, bit by bit, and the engine
must compute the same logits of a small prompt.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from parallel_core.checkpoint.commit import checkpoint_name
from parallel_core.checkpoint.convert import formats, logits
from parallel_core.checkpoint.convert.checksums import damages
from parallel_core.checkpoint.convert.huggingface.tables import FAMILIES
from parallel_core.checkpoint.convert.huggingface.write import write_huggingface
from parallel_core.checkpoint.convert.megatron.write import Layout, write_legacy
from parallel_core.checkpoint.convert.model import Model, padded
from parallel_core.checkpoint.convert.native import write_native
from parallel_core.checkpoint.convert.verify import differences
from parallel_core.findings import exit_code


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        "python -m parallel_core.checkpoint.convert", description=__doc__, allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    made.add_argument("--input", type=Path, required=True, help="a checkpoint's folder, or what --save was")
    made.add_argument("--output", type=Path, required=True, help="a new folder; of our format also one that --save was")
    made.add_argument("--from", dest="source", choices=("auto", *formats.KINDS), default="auto")
    made.add_argument("--to", choices=formats.KINDS, default="native")
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
    made.add_argument("--vocab-size", type=int, help="ids of the tokenizer; Megatron's checkpoints do not say it")
    made.add_argument(
        "--make-vocab-size-divisible-by", type=int, help="pad the vocabulary to a multiple of this and tp"
    )
    made.add_argument("--huggingface-model-type", choices=[family.model_type for family in FAMILIES])
    made.add_argument("--tensor-model-parallel-size", type=int, default=1)
    made.add_argument("--pipeline-model-parallel-size", type=int, default=1)
    made.add_argument("--num-layers-per-virtual-pipeline-stage", type=int)
    made.add_argument("--expert-model-parallel-size", type=int, default=1)
    made.add_argument("--expert-tensor-parallel-size", type=int)
    return made


def convert(options: argparse.Namespace) -> list[str]:
    """Convert; lines that say what was done. Raises ValueError, and leaves no target, if something does not fit."""
    source, folder = formats.recognise(options.input, options.source, options.ckpt_step)
    _check_options(options)
    damaged = list(damages(folder))
    if damaged:  # what is written gets checksums of its own, which would vouch for it
        raise ValueError("\n".join(damaged))
    model = formats.read(folder, source.kind, optimizer=not options.no_load_optim and options.to != "hf")
    taken = options.output / checkpoint_name(model.position.iteration)
    if options.to == "native" and taken.exists():
        raise ValueError(f"--output {options.output}: has {taken.name} already; name another folder")
    if options.vocab_size is not None:
        if options.vocab_size > model.vocab_size:
            raise ValueError(f"--vocab-size {options.vocab_size}: the checkpoint has {model.vocab_size} rows; lower it")
        model.network["unpadded_vocab_size"] = options.vocab_size
    tensor = options.tensor_model_parallel_size
    if options.to == "native" and (options.make_vocab_size_divisible_by or tensor > 1):
        step = options.make_vocab_size_divisible_by or model.network.get("make_vocab_size_divisible_by") or 1
        model = model.with_rows(padded(model.unpadded_vocab_size, step, tensor))
    written = _write(model, options)
    lines = [f"{folder} ({source.name} format): {len(model.weights)} weights" + _states(model)]
    if not options.no_verify:
        lines += _verified(model, folder, written, options)
    return [*lines, f"written: {written}"]


def _verified(model: Model, source: Path, written: Path, options: argparse.Namespace) -> list[str]:
    """Lines that say in what the written checkpoint is equal to the source. Raises ValueError if it is not."""
    problems = differences(model, formats.read(written, options.to), states=options.to != "hf")
    if problems:
        raise ValueError("what was written is not what was read:\n" + "\n".join(problems[:20]))
    lines = ["read again: the same network, equal bit by bit"]
    if options.logits == "no":
        return lines
    reason = logits.skipped(model) if options.logits == "auto" else None
    if reason is not None:
        return [*lines, f"logits of a small prompt: not compared, {reason}"]
    found = logits.difference(model, source, written)
    return [*lines, f"logits of a small prompt: equal, the largest difference is {found:.1e} of the largest logit"]


def _states(model: Model) -> str:
    return f", optimizer states {', '.join(model.states)}" if model.states else ", no optimizer state"


def _check_options(options: argparse.Namespace) -> None:
    if options.no_verify and options.logits == "yes":
        raise ValueError("--logits yes: compares what was written, which --no-verify does not read; leave one out")
    inside = options.output.resolve()
    if inside == options.input.resolve() or (options.to != "native" and inside.exists() and any(inside.iterdir())):
        raise ValueError(f"--output {options.output}: is not empty; name a new folder")


def _write(model: Model, options: argparse.Namespace) -> Path:
    """The target, which appears whole or not at all."""
    output: Path = options.output
    if options.to == "native":
        return write_native(model, output)
    partial = output.with_name(f".{output.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        if options.to == "hf":
            write_huggingface(model, partial, options.huggingface_model_type)
        else:
            write_legacy(model, partial, _layout(options), options.make_vocab_size_divisible_by)
        if output.exists():
            output.rmdir()
        partial.rename(output)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return output


def _layout(options: argparse.Namespace) -> Layout:
    return Layout(
        options.tensor_model_parallel_size,
        options.pipeline_model_parallel_size,
        options.num_layers_per_virtual_pipeline_stage,
        options.expert_model_parallel_size,
        options.expert_tensor_parallel_size,
    )


def main(argv: list[str] | None = None) -> int:
    """Run the command; 1 if it failed."""
    options = parser().parse_args(argv)
    return exit_code(lambda: print("\n".join(convert(options))))


if __name__ == "__main__":
    sys.exit(main())
