"""Show a checkpoint, ours, HuggingFace's or Megatron-LM's: parameters, shapes, types, shards, sizes.

python -m mapping inspect output                  a checkpoint's folder, or the one of --save
python -m mapping inspect data/text_document      a data set, by its prefix: `preprocess inspect --help`
"""

import argparse
import sys
import zipfile
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path

import numpy as np

from parallel_core.checkpoint.convert import formats
from parallel_core.checkpoint.convert.formats import damages, unverified
from parallel_core.checkpoint.convert.model import Model
from parallel_core.checkpoint.lazy import Assembled, LazyTensor
from parallel_core.findings import exit_code
from parallel_core.system.command_line import command_line, ends_quietly, program
from parallel_core.system.files import replacing

RECORDED_AS = {"main_param": "fp32_param"}
"""State -> its name in the arrays of --optimizer-npz, where that differs."""


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    made = command_line(__doc__, program("inspect"))
    made.add_argument("directory", type=Path, help="a checkpoint's folder, or what --save was")
    made.add_argument("--from", dest="source", choices=("auto", *formats.KINDS), default="auto", help="of which tool")
    made.add_argument("--ckpt-step", type=int, help="this iteration instead of the latest")
    made.add_argument("--check", action="store_true", help="read every byte, and compare checksums where there are any")
    made.add_argument("--npz", type=Path, help="write the whole parameters, float32, under Megatron's global names")
    made.add_argument("--optimizer-npz", type=Path, help="write the optimizer's state the same way")
    return made


def lines(model: Model) -> Iterator[str]:
    """Lines of a table of the weights, then sums, the optimizer's states, and the run's position. Raises ValueError for
    a model without weights."""
    width = max(map(len, model.weights))
    for name, tensor in model.weights.items():
        shards = len(tensor.pieces) if isinstance(tensor, Assembled) else 1
        shape = " x ".join(map(str, tensor.shape)) or "1"
        yield f"{name:{width}}  {shape:>16}  {tensor.dtype:8}  {shards:4} shard(s)  {tensor.nbytes:14,} bytes"
    count = sum(prod(tensor.shape) for tensor in model.weights.values())
    yield f"{len(model.weights)} weights, {count:,} parameters, {_bytes(model.weights):,} bytes"
    for state, tensors in model.states.items():
        yield f"optimizer state {state}: {len(tensors)} tensors, {_bytes(tensors):,} bytes"
    position = model.position
    steps = f"{position.optimizer_steps} steps of the optimizer"
    yield f"iteration {position.iteration}, {position.consumed_samples} samples, {steps}"


def _bytes(tensors: Mapping[str, LazyTensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors.values())


def problems(folder: Path, model: Model) -> list[str]:
    """Sentences about damaged files, by checksums of ours and of torch.save (`damages`), and about tensors that cannot
    be read: each of the model's is tried."""
    found = list(damages(folder))
    for name, tensor in model.all_tensors():
        try:
            tensor.read()
        except (ValueError, OSError) as error:
            found.append(f"{name}: {error}")
    return found


def write_npz(path: Path, tensors: Mapping[str, LazyTensor]) -> None:
    """Write tensors, by name, into `path` in the format of numpy.savez, one after another; 16-bit floats as float32."""
    with replacing(path) as out, zipfile.ZipFile(out, "w") as archive:
        for name, tensor in tensors.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.save(file, tensor.widened(), allow_pickle=False)


def inspect(options: argparse.Namespace) -> Iterator[str]:
    """The lines that the command prints; arrays are written if asked for. Raises ValueError if no checkpoint is found
    or its content is wrong, and with --check if `problems` finds any; OSError if a file cannot be read or written."""
    one, folder = formats.recognise(options.directory, options.source, options.ckpt_step)
    model = formats.read_as_stored(one, folder)
    yield f"{folder}: {one.name} format"
    yield from lines(model)
    if options.check:
        found, bare = problems(folder, model), unverified(folder)
        if found:
            raise ValueError("\n".join(found))
        yield "every byte was read: nothing is wrong"
        yield from (f"{name}: unverified: it has no checksums that its bytes could be compared with" for name in bare)
    if options.npz is not None:
        write_npz(options.npz, model.weights)
    if options.optimizer_npz is not None:
        states = {
            f"{RECORDED_AS.get(state, state)}.{name}": tensor
            for state, tensors in model.states.items()
            for name, tensor in tensors.items()
        }
        write_npz(options.optimizer_npz, states)
        if not states:
            yield f"{options.optimizer_npz}: has no arrays, for the checkpoint has no optimizer's state"


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code: 0, or 1 after a ValueError or OSError of `inspect`, which is printed.
    Wrong arguments raise SystemExit."""
    options = parser().parse_args(argv)

    def work() -> None:
        with ends_quietly():
            for line in inspect(options):
                print(line)

    return exit_code(work)


if __name__ == "__main__":
    sys.exit(main())
