"""Checkpoints of every format with one file changed at random: `python -m tests.support.checkpoint_fuzz [KIND ...]
[--trials 500] [--seed 0]`.

Whatever stands in a file, whoever reads it is told which file and why (ValueError or OSError), soon, and nothing
outside of the folder is opened. What cannot be noticed is read.
"""

import argparse
import io
import json
import os
import random
import resource
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mapping.given import Given
from mapping.readers import checkpoint as checkpoint_args
from parallel_core.checkpoint import commit
from parallel_core.checkpoint.convert.reader import holds_checkpoint, open_checkpoint
from parallel_core.checkpoint.inspect import main as inspect
from parallel_core.checkpoint.manifest import MANIFEST
from parallel_core.checkpoint.mindspore_file import write_mindspore
from parallel_core.checkpoint.reader import CheckpointReader
from parallel_core.config.tree import path_of
from parallel_core.sharding import ShardSpec, place
from tests.support.checkpoint_cases import unpack
from tests.support.checkpoint_writing import save
from tests.support.opened import opened

LIMIT_SECONDS = 20
MEMORY = 3 << 30
"""Bytes of memory that a reader may take beside what this process has."""


class Hangs(BaseException):
    """Raised in a reader that takes too long; a BaseException, so that no reader catches it."""


@dataclass
class Base:
    """A whole checkpoint: its root, the parameters that a model reads of it, and its files."""

    root: Path
    specs: list[ShardSpec]
    files: list[Path]


def native(folder: Path) -> Path:
    """Write checkpoints of iterations 1 and 2, of two stages each; their root."""
    for iteration in (1, 2):
        values = np.arange(12, dtype=np.float32).reshape(4, 3)
        specs = [ShardSpec(name=name, shape=(4, 3)) for name in ("decoder.a", "decoder.b", "exp_avg.decoder.a")]
        stages = [{spec.name: (spec, values + n)} for n, spec in enumerate(specs)]
        save(folder / "save", iteration, [stages[0] | stages[1], stages[2]])
    return folder / "save"


def mindspore(folder: Path) -> Path:
    """Write `native`'s checkpoints with MindSpore's files in place of safetensors; their root."""
    root = native(folder)
    for path in sorted(root.glob("iter_*")):
        reader = CheckpointReader(path)
        text = (path / MANIFEST).read_text()
        content = json.loads(text)
        del content["digest"]
        for file in list(content["files"]):
            stored = reader._open(file)
            record = write_mindspore(path / f"{file}.ckpt", {name: stored.array(name) for name in stored.names})
            (path / file).unlink()
            del content["files"][file]
            content["files"][f"{file}.ckpt"] = vars(record)
            for tensor in content["tensors"].values():
                for shard in tensor["shards"]:
                    shard["file"] = f"{file}.ckpt" if shard["file"] == file else shard["file"]
        (path / MANIFEST).write_text(json.dumps(content))
    return root


KINDS: dict[str, Callable[[Path], Path]] = {"native": native, "mindspore": mindspore} | {
    case: lambda folder, case=case: unpack(case, folder)
    for case in (
        "hf/llama",
        "hf/mixtral",
        "legacy/llama_tp2_dp2_bf16_distopt",
        "torch_dist/llama_dp2_bf16_distopt_default",
    )
}


def base(kind: str, folder: Path) -> Base:
    """Write a checkpoint of a kind (KINDS)."""
    root = KINDS[kind](folder)
    tensors = open_checkpoint(root).manifest.tensors
    specs = [ShardSpec(name=name, shape=tensor.shape) for name, tensor in tensors.items()]
    return Base(root, specs, sorted(path for path in root.rglob("*") if path.is_file()))


PATHS = ("../outside/secret", "/etc/passwd", "/dev/zero", "..", ".", "", "a\0b", "\ud800", "x" * 5000, "ﬁ́\u202e")
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 10**30, 0.5, float("nan"), float("inf"), -1e308, "1", [], {}, [[]],
    [1 << 40, 1 << 40], [-4, -3], {"a": {"a": 1}}, *PATHS,
)  # fmt: skip


def mutated(value: Any, draw: random.Random) -> Any:
    """A JSON value with one place changed, anywhere in it."""
    if not isinstance(value, dict | list) or not value or draw.random() < 0.1:
        return _changed(value, draw)
    places = list(value) if isinstance(value, dict) else list(range(len(value)))
    at = draw.choice(places)
    made = value.copy()
    what = draw.random()
    if what < 0.08:
        del made[at]
    elif what < 0.16 and isinstance(made, dict):
        made[draw.choice([str(draw.choice(VALUES)), draw.choice(places)])] = made.pop(at)
    elif what < 0.24 and isinstance(made, list):
        made.append(made[at])
    else:
        made[at] = mutated(made[at], draw)
    return made


def _changed(value: Any, draw: random.Random) -> Any:
    if isinstance(value, int) and draw.random() < 0.5:
        return draw.choice([value + 1, value - 1, -value, value * 2**40, float(value), str(value)])
    if isinstance(value, list) and draw.random() < 0.2:
        return json.loads("[" * 500 + "]" * 500)
    return draw.choice(VALUES)


def _json(data: bytes, draw: random.Random) -> bytes:
    """JSON data with some places changed. The manifest's own digest mostly goes, as every change is noticed by it."""
    content = json.loads(data)
    if isinstance(content, dict) and draw.random() < 0.9:
        content.pop("digest", None)
    for _ in range(draw.choice([1, 1, 1, 2, 4])):
        content = mutated(content, draw)
    text = json.dumps(content).encode()
    if draw.random() < 0.05:
        text = text.replace(b"{", b'{"iteration": 1, "iteration": 2, ', 1)
    return b"[" * 100_000 if draw.random() < 0.02 else text


def _header(data: bytes, draw: random.Random) -> bytes:
    """A safetensors file whose header is changed, and whose length field is right or not."""
    length = int.from_bytes(data[:8], "little")
    header, rest = _json(data[8 : 8 + length], draw), data[8 + length :]
    said = draw.choice([len(header)] * 6 + [0, 1, len(header) + 1, 2**63, 2**64 - 1, len(data)])
    return said.to_bytes(8, "little") + header + rest


def _bytes(data: bytes, draw: random.Random) -> bytes:
    """Data with bits flipped, or pieces cut out, doubled or overwritten."""
    made = bytearray(data)
    for _ in range(draw.choice([1, 1, 2, 8])):
        at, length = draw.randrange(len(made) + 1), draw.choice([1, 2, 8, 100, 5000])
        piece = draw.choice([b"", bytes(length), b"\xff" * length, made[at : at + length] * 2, draw.randbytes(length)])
        made[at : at + draw.choice([0, 1, length])] = piece
    return bytes(made)


def _other_thing(path: Path, draw: random.Random) -> None:
    """Put a link, pipe, folder, socket, sparse file or nothing in a file's place."""
    path.unlink()
    kind = draw.choice(["link", "zero", "pipe", "folder", "socket", "sparse", "loop", "nothing"])
    if kind == "link":
        path.symlink_to(path.parents[len(path.parents) - 1] / "etc/passwd")
    elif kind == "zero":
        path.symlink_to("/dev/zero")
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        place = os.getcwd()
        os.chdir(path.parent)  # tar limits names to a hundred letters
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(path.name)
        os.chdir(place)
    elif kind == "sparse":
        with path.open("wb") as file:
            file.truncate(1 << 42)


def damage(path: Path, draw: random.Random) -> None:
    """Change a file in a drawn way: its JSON, header or bytes, or put something else in its place."""
    data = path.read_bytes()
    if draw.random() < 0.15:
        _other_thing(path, draw)
    elif path.suffix == ".json" and draw.random() < 0.85:
        path.write_bytes(_json(data, draw))
    elif path.suffix == ".safetensors" and draw.random() < 0.7:
        path.write_bytes(_header(data, draw))
    elif path.name == commit.TRACKER:
        path.write_text(
            draw.choice([*map(str, VALUES), "\u0661", "9" * 5000, "9" * 18]), encoding="utf-8", errors="surrogatepass"
        )
    else:
        path.write_bytes(_bytes(data, draw))


def load(base: Base) -> None:
    """Read as --load does: the checks before a weight is changed, then every parameter."""
    commit.overlooked(base.root)
    reader = open_checkpoint(base.root)
    found = [reader.problem(spec.name, spec) for spec in base.specs]
    problems = [*filter(None, found), *reader.damaged_files()]
    if problems:
        raise ValueError("\n".join([*problems, commit.another(reader.directory)]))
    for spec in base.specs:
        reader.read(spec.name, place(spec, {}), np.empty(spec.shape, np.float32))


def look_in(base: Base) -> None:
    """Read as `inspect --check` does; raises ValueError if it reports an error."""
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        if inspect([str(base.root), "--check"]):
            raise ValueError(printed.getvalue())


def take_arguments(base: Base) -> None:
    """Read as --use-checkpoint-args does; raises ValueError with its findings."""
    holds_checkpoint(base.root)
    asked = {"use_checkpoint_args": True, "use_mp_args_from_checkpoint_args": True, "load_checkpoint": str(base.root)}
    said = checkpoint_args.read([Given(name, value, field=path_of(name)) for name, value in asked.items()])
    wrong = [finding for finding in said.findings if finding.flag != "--use-mp-args-from-checkpoint-args"]
    if wrong:
        raise ValueError("\n".join(map(str, wrong)))


READERS = (load, look_in, take_arguments)


def faults(base: Base, draw: random.Random, limited: Callable[[], Any]) -> Iterator[str]:
    """Damage one file, read by every reader, put the file back: descriptions of what a reader did that it
    must not do."""
    path = draw.choice(base.files)
    kept = path.read_bytes()
    damage(path, draw)
    try:
        for read in READERS:
            with opened() as files:
                yield from (f"{path}: {read.__name__}: {fault}" for fault in _faults_of(read, base, limited))
            far = {
                file for file in files if str(file).startswith(("/etc/passwd", "/dev/zero")) or "outside" in str(file)
            }
            if far:
                yield f"{path}: {read.__name__}: opened {far}"
    finally:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.write_bytes(kept)


def _faults_of(read: Callable[[Base], None], base: Base, limited: Callable[[], Any]) -> Iterator[str]:
    try:
        with limited():
            read(base)
    except (ValueError, OSError) as error:
        if str(base.root) not in str(error):
            yield f"names no file: {error!r}"
    except Hangs:
        yield "hangs"
    except BaseException as error:
        yield f"{error!r} at {_place_of(error)}"


def _place_of(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    assert trace is not None
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"


@contextmanager
def in_time() -> Iterator[None]:
    """A context that raises `Hangs` after a while."""

    def hang(*_: Any) -> None:
        raise Hangs

    signal.signal(signal.SIGALRM, hang)
    signal.alarm(LIMIT_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)


def search(kind: str, folder: Path, trials: range, limited: Callable[[], Any] = in_time) -> list[str]:
    """The faults found in these trials with a checkpoint of a kind; each trial has a seed of its own."""
    (folder / "outside").mkdir(exist_ok=True)
    (folder / "outside" / "secret").write_text("secret")
    one, found = base(kind, folder), list[str]()
    for seed in trials:
        found += (f"{kind} {seed}: {fault}" for fault in faults(one, random.Random(seed), limited))
    with suppress(OSError):
        assert (folder / "outside" / "secret").read_text() == "secret"
    return found


def main(argv: list[str]) -> int:
    """Search the kinds given for faults and print them; exit code 1 if there are any."""
    made = argparse.ArgumentParser("python -m tests.support.checkpoint_fuzz", description=__doc__)
    made.add_argument("kinds", nargs="*", default=list(KINDS), metavar="KIND", help=", ".join(KINDS))
    made.add_argument("--trials", type=int, default=500)
    made.add_argument("--seed", type=int, default=0)
    options = made.parse_args(argv)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, resource.RLIM_INFINITY))
    code = 0
    for kind in options.kinds:
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            found = search(kind, Path(folder), range(options.seed, options.seed + options.trials))
        print(f"{kind}: {options.trials} trials, {len(found)} faults ({time.monotonic() - began:.0f} s)", flush=True)
        print(*found, sep="\n")
        code |= bool(found)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
