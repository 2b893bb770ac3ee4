"""Whatever happens to a file of a checkpoint is found before anything of it is used, and named."""

import os
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pytest

from parallel_core.checkpoint import commit
from parallel_core.checkpoint.convert.reader import open_checkpoint
from parallel_core.checkpoint.manifest import MANIFEST
from parallel_core.checkpoint.tensor_file import FileRecord, TensorFile, damage
from parallel_core.sharding import ShardSpec
from tests.support.checkpoint_writing import save
from tests.support.damage import DAMAGES, exchange, files_of, flip, random_bits

SPEC = ShardSpec(name="decoder.weight", shape=(4, 3))
OTHER = ShardSpec(name="decoder.bias", shape=(3,))
FIRST, SECOND = "mp_rank_00_000.safetensors", "mp_rank_00_001.safetensors"


@pytest.fixture
def root(tmp_path):
    """Two checkpoints of two stages; nothing in them is alike."""
    for iteration in (1, 2):
        values = np.arange(12, dtype=np.float32).reshape(4, 3) + iteration
        stages = [
            {spec.name: (spec, values[:1].reshape(spec.shape) if spec is OTHER else values)} for spec in (SPEC, OTHER)
        ]
        save(tmp_path, iteration, stages)
    return tmp_path


def problems(root: Path) -> str:
    """What `--load root` is told before it reads."""
    try:
        reader = open_checkpoint(root)
    except ValueError as error:
        return str(error)
    found = [reader.problem(spec.name, spec) for spec in (SPEC, OTHER)]
    noticed = commit.overlooked(root)
    return "\n".join(filter(None, [*reader.damaged_files(), *found, noticed]))


def _means_the_same(path: Path, data: bytes) -> bool:
    """A pointer may end in another blank, or in none."""
    return path.name == commit.TRACKER and path.is_file() and path.read_bytes().strip() == data.strip()


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("number", range(4), ids=["pointer", "manifest", "first file", "second file"])
def test_it_is_found_and_the_file_is_named(root, number, damage):
    """The pointer, the manifest, each file with tensors."""
    assert problems(root) == ""
    path = files_of(root, root / "iter_0000002")[number]
    other = root / "iter_0000001" / path.name if number else root / "elsewhere"
    if not number:
        other.write_text("1\n")
    data = path.read_bytes()
    DAMAGES[damage](path, other)
    assert path.name in problems(root) or _means_the_same(path, data)


def test_files_of_one_checkpoint_have_each_others_names(root):
    folder = root / "iter_0000002"
    exchange(folder / FIRST, folder / SECOND)
    assert FIRST in problems(root) and SECOND in problems(root)


def test_a_folder_in_the_place_of_another(root):
    """Each is whole, but not what it is called."""
    exchange(root / "iter_0000001", root / "iter_0000002")
    assert "it is of iteration 1, its folder of another" in problems(root)


def test_every_bit_counts(root):
    """Flipped anywhere in a file's header, in its tensors, in the manifest, in the pointer."""
    for path in files_of(root, root / "iter_0000002"):
        data = path.read_bytes()
        for byte, bit in random_bits(path, 100):
            flip(path, byte, bit)
            assert path.name in problems(root) or _means_the_same(path, data), (path, byte, bit)
            path.write_bytes(data)
    assert problems(root) == ""


def test_the_tensor_is_named(root):
    """And not those beside it."""
    flip(root / "iter_0000002" / SECOND)
    (text,) = open_checkpoint(root).damaged_files()
    assert OTHER.name in text and SPEC.name not in text


def test_the_newest_other_one_is_named(root):
    """Of those that look whole; and when there is none, that."""
    flip(root / "iter_0000002" / MANIFEST, 0)
    assert f"--load {root} --ckpt-step 1" in problems(root)
    (root / "iter_0000001" / FIRST).unlink()
    assert "holds no other whole checkpoint" in problems(root)


def test_a_digest_of_an_earlier_version_counts(root):
    """Its manifests have one for each file, none of tensors, and none of themselves."""
    path = root / "iter_0000002" / FIRST
    record = FileRecord(path.stat().st_size, blake2b(path.read_bytes()).hexdigest())
    assert damage(path, record, TensorFile) is None
    flip(path)
    assert FIRST in damage(path, record, TensorFile)


def test_a_pipe_in_the_place_of_a_file_stops_nobody(root):
    """Opening it would wait for ever."""
    path = root / "iter_0000002" / FIRST
    path.unlink()
    os.mkfifo(path)
    assert FIRST in problems(root)
