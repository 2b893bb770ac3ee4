"""Damage to any file of a checkpoint is found, with the file's name, before a value is used."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from parallel_core.checkpoint import commit
from parallel_core.checkpoint.convert.reader import open_checkpoint
from parallel_core.checkpoint.inspect import main as inspect
from parallel_core.checkpoint.manifest import MANIFEST
from parallel_core.sharding import ShardSpec
from tests.support.checkpoint_writing import save
from tests.support.damage import DAMAGES, exchange, files_of, flip, random_bits

SPEC = ShardSpec(name="decoder.weight", shape=(4, 3))
OTHER = ShardSpec(name="decoder.bias", shape=(3,))
FIRST, SECOND = "mp_rank_00_000.safetensors", "mp_rank_00_001.safetensors"


@pytest.fixture
def root(tmp_path):
    """A folder with checkpoints 1 and 2 of two stages, with other values in each."""
    for iteration in (1, 2):
        values = np.arange(12, dtype=np.float32).reshape(4, 3) + iteration
        stages = [
            {spec.name: (spec, values[:1].reshape(spec.shape) if spec is OTHER else values)} for spec in (SPEC, OTHER)
        ]
        save(tmp_path, iteration, stages)
    return tmp_path


def problems(root: Path) -> str:
    """All errors that `--load root` reports before it uses values, one a line; empty if there are none."""
    try:
        reader = open_checkpoint(root)
    except ValueError as error:
        return str(error)
    found = [reader.problem(spec.name, spec) for spec in (SPEC, OTHER)]
    noticed = commit.overlooked(root)
    return "\n".join(filter(None, [*reader.damaged_files(), *found, noticed]))


def _means_the_same(path: Path, data: bytes) -> bool:
    """Whether the file is latest_checkpointed_iteration.txt and differs from `data` in blanks at its ends alone."""
    return path.name == commit.TRACKER and path.is_file() and path.read_bytes().strip() == data.strip()


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("number", range(4), ids=["pointer", "manifest", "first file", "second file"])
def test_it_is_found_and_the_file_is_named(root, number, damage):
    """Each kind of damage (`DAMAGES`) to each file of a checkpoint is reported with that file's name."""
    assert problems(root) == ""
    path = files_of(root, root / "iter_0000002")[number]
    other = root / "iter_0000001" / path.name if number else root / "elsewhere"
    if not number:
        other.write_text("1\n")
    data = path.read_bytes()
    DAMAGES[damage](path, other)
    assert path.name in problems(root) or _means_the_same(path, data)


def test_files_of_one_checkpoint_have_each_others_names(root):
    """Two stages' files that were exchanged are both reported."""
    folder = root / "iter_0000002"
    exchange(folder / FIRST, folder / SECOND)
    assert FIRST in problems(root) and SECOND in problems(root)


def test_a_folder_in_the_place_of_another(root):
    """Folders of two whole checkpoints that were exchanged are refused: the manifest's iteration is not the
    folder's."""
    exchange(root / "iter_0000001", root / "iter_0000002")
    assert "it is of iteration 1, its folder of another" in problems(root)


def test_every_bit_counts(root):
    """A flipped bit at any of 100 random places of each file (header, tensors, manifest,
    latest_checkpointed_iteration.txt) is reported with the file's name."""
    for path in files_of(root, root / "iter_0000002"):
        data = path.read_bytes()
        for byte, bit in random_bits(path, 100):
            flip(path, byte, bit)
            assert path.name in problems(root) or _means_the_same(path, data), (path, byte, bit)
            path.write_bytes(data)
    assert problems(root) == ""


def test_the_tensor_is_named(root):
    """A flipped bit in a tensor is reported with that tensor's name and no other."""
    flip(root / "iter_0000002" / SECOND)
    (text,) = open_checkpoint(root).damaged_files()
    assert OTHER.name in text and SPEC.name not in text


def test_the_newest_other_one_is_named(root):
    """The message about a damaged checkpoint gives --load and --ckpt-step of the newest other whole one, or says that
    there is none."""
    flip(root / "iter_0000002" / MANIFEST, 0)
    assert f"--load {root} --ckpt-step 1" in problems(root)
    (root / "iter_0000001" / FIRST).unlink()
    assert "holds no other whole checkpoint" in problems(root)


def test_a_pipe_in_the_place_of_a_file_stops_nobody(root):
    """A named pipe in the place of a file is reported at once: opening it would wait for ever."""
    path = root / "iter_0000002" / FIRST
    path.unlink()
    os.mkfifo(path)
    assert FIRST in problems(root)


def test_what_has_no_checksums_is_called_unverified(root, capsys):
    """Files without checksums, as in a manifest written by hand, are accepted; the reader and `inspect --check` call
    them unverified."""
    folder = root / "iter_0000002"
    assert open_checkpoint(root).unverified_files == []
    content = json.loads((folder / MANIFEST).read_text())
    del content["digest"], content["files"][SECOND]["crc32"]
    (folder / MANIFEST).write_text(json.dumps(content))
    assert open_checkpoint(root).unverified_files == [MANIFEST, SECOND] and problems(root) == ""
    assert inspect([str(root), "--check"]) == 0
    said = capsys.readouterr().out
    assert f"{SECOND}: unverified" in said and f"{FIRST}: unverified" not in said


def without_digest(edit: Callable[[dict], None], folder: Path) -> None:
    """Edit the folder's manifest as somebody who knows its form: without its digest, `edit` changes the content."""
    content = json.loads((folder / MANIFEST).read_text())
    del content["digest"]
    edit(content)
    (folder / MANIFEST).write_text(json.dumps(content))


def rename(content: dict) -> None:
    """Give the tensor SPEC another name in a manifest."""
    content["tensors"]["decoder.other"] = content["tensors"].pop(SPEC.name)


def exchange_names(content: dict) -> None:
    """Exchange the entries of SPEC and TWIN in a manifest."""
    tensors = content["tensors"]
    tensors[SPEC.name], tensors[TWIN.name] = tensors[TWIN.name], tensors[SPEC.name]


def exchange_checksums(content: dict) -> None:
    """Exchange the checksums of SPEC and TWIN in each file's entry."""
    for record in content["files"].values():
        table = record["crc32"]
        table[SPEC.name], table[TWIN.name] = table[TWIN.name], table[SPEC.name]


TWIN = ShardSpec(name="decoder.weighs", shape=SPEC.shape)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (rename, f"{SPEC.name}: the model has it"),
        (exchange_names, f"{SECOND}: {SPEC.name} is not there"),
        (exchange_checksums, FIRST),
    ],
)
def test_a_tensor_is_bound_to_its_name(tmp_path, edit, words):
    """A tensor renamed in an edited manifest without digest, or two of one shape whose names or checksums were
    exchanged there, is reported: the files themselves name their tensors."""
    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    stages = [{SPEC.name: (SPEC, values)}, {TWIN.name: (TWIN, values + 1)}]
    if edit is exchange_checksums:
        stages = [stages[0] | stages[1]]
    folder = save(tmp_path, 1, stages)
    without_digest(edit, folder)
    assert words in problems(tmp_path)


def test_tensors_of_one_shape_that_change_places_in_a_file(tmp_path):
    """Two tensors of one shape whose bytes, or whose names in the file's header, were exchanged are reported."""
    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    path = save(tmp_path, 1, [{SPEC.name: (SPEC, values), TWIN.name: (TWIN, values + 1)}]) / FIRST
    whole = path.read_bytes()
    one, other = values.tobytes(), (values + 1).tobytes()
    path.write_bytes(whole.replace(one + other, other + one))
    assert path.read_bytes() != whole and f"are {TWIN.name}, {SPEC.name}" in problems(tmp_path)
    twin, weight = TWIN.name.encode(), SPEC.name.encode()
    path.write_bytes(whole.replace(twin, b"?").replace(weight, twin).replace(b"?", weight))
    assert "its header" in problems(tmp_path)


@pytest.mark.parametrize("kind", ["another run's manifest", "another run's file", "both runs' files"])
def test_parts_of_two_runs_do_not_mix(tmp_path, kind):
    """A manifest or file of another run of the same iteration, names, shapes and sizes is reported, for both runs."""
    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    one, other = (
        save(tmp_path / str(n), 1, [{SPEC.name: (SPEC, values + n)}, {OTHER.name: (OTHER, values[0] + n)}])
        for n in (0, 1)
    )
    taken = {
        "another run's manifest": [MANIFEST],
        "another run's file": [SECOND],
        "both runs' files": [MANIFEST, SECOND],
    }
    for name in taken[kind]:
        exchange(one / name, other / name)
    assert "not what was written" in problems(tmp_path / "0") and "not what was written" in problems(tmp_path / "1")


def test_whole_numbers_are_no_weights(tmp_path):
    """A weight stored as int32 is refused: numpy would convert it to float silently."""
    save(tmp_path, 1, [{SPEC.name: (SPEC, np.ones((4, 3), np.int32)), OTHER.name: (OTHER, np.ones(3, np.float32))}])
    assert (
        problems(tmp_path)
        == f"{SPEC.name}: is int32 in {tmp_path / 'iter_0000001'}, the model has floating-point numbers"
    )
