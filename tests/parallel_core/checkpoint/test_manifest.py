"""A manifest that was tampered with is refused before anything is read, inside of its folder or outside."""

import json
import shutil
from pathlib import Path

import pytest

from parallel_core.checkpoint.manifest import Manifest
from parallel_core.checkpoint.reader import CheckpointReader
from tests.support.checkpoint_writing import one_tensor, save

FILE = "mp_rank_00_000.safetensors"


@pytest.fixture
def folder(tmp_path):
    """A checkpoint of one tensor over two tensor-parallel ranks."""
    return save(tmp_path / "saved", 1, [one_tensor(1)], tensor_size=2)


def change(folder: Path, edit) -> None:
    """Edit the manifest as JSON."""
    path = folder / "manifest.json"
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


def renamed(name: str):
    """The first file goes by another name, everywhere."""

    def edit(content):
        content["files"][name] = content["files"].pop(FILE)
        content["tensors"]["w"]["shards"][0]["file"] = name

    return edit


def shard(content: dict, number: int = 0) -> dict:
    """A shard of the tensor."""
    return content["tensors"]["w"]["shards"][number]


EDITS = {
    "leaves the folder": (renamed(f"../{FILE}"), "does not lie in it"),
    "leaves it in the middle": (renamed(f"a/../../{FILE}"), "does not lie in it"),
    "absolute": (renamed("/etc/passwd"), "does not lie in it"),
    "a slice twice": (lambda c: c["tensors"]["w"]["shards"].append(dict(shard(c))), "entries"),
    "a slice in the place of another": (lambda c: shard(c, 1)["pieces"].__setitem__(0, shard(c)["pieces"][0]), "twice"),
    "a slice is missing": (lambda c: c["tensors"]["w"]["shards"].pop(), "entries"),
    "a slice beyond the end": (lambda c: shard(c, 1)["pieces"][0]["start"].__setitem__(0, 1000), "does not lie in"),
    "a negative place": (lambda c: shard(c)["pieces"][0]["at"].__setitem__(0, -1), "does not lie in"),
    "a fraction": (lambda c: shard(c)["pieces"][0]["at"].__setitem__(0, 0.5), "not a slice"),
    "another number of axes": (lambda c: shard(c)["pieces"][0]["at"].append(0), "does not lie in"),
    "an absurd shape": (lambda c: c["tensors"]["w"].__setitem__("shape", [1 << 40, 1 << 40]), "more than all files"),
    "a negative shape": (lambda c: c["tensors"]["w"].__setitem__("shape", [-1, -8]), "not possible"),
    "an unknown type": (lambda c: c["tensors"]["w"].__setitem__("dtype", "object"), "not possible"),
    "a file that is not listed": (lambda c: c["files"].pop(FILE), "not a file of it"),
}


@pytest.mark.parametrize("name", EDITS)
def test_it_is_refused(folder, name):
    """With the reason."""
    edit, words = EDITS[name]
    assert Manifest.read(folder).tensors
    change(folder, edit)
    with pytest.raises(ValueError, match=words):
        CheckpointReader(folder)


def test_a_tensor_that_is_there_twice_is_refused(folder):
    """JSON itself takes the last of two equal names."""
    path = folder / "manifest.json"
    text = path.read_text()
    path.write_text(text.replace('"format_version": 1', '"format_version": 1, "iteration": 2'))
    with pytest.raises(ValueError, match="twice"):
        Manifest.read(folder)


def test_a_link_is_refused(folder, tmp_path):
    """Also to a file with the right bytes."""
    shutil.move(folder / FILE, tmp_path / "elsewhere")
    (folder / FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="is a link"):
        CheckpointReader(folder)
