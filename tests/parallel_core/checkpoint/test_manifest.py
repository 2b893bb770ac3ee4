"""Manifests that were tampered with: refused before any other file is read, inside or outside of the folder."""

import json
import re
import shutil
from pathlib import Path

import pytest

from parallel_core.checkpoint.manifest import Manifest
from parallel_core.checkpoint.reader import CheckpointReader
from tests.support.checkpoint_writing import one_tensor, save
from tests.support.opened import opened

FILE = "mp_rank_00_000.safetensors"


@pytest.fixture
def folder(tmp_path):
    """A checkpoint of one tensor over two tensor-parallel ranks."""
    return save(tmp_path / "saved", 1, [one_tensor(1)], tensor_size=2)


def change(folder: Path, edit) -> None:
    """Edit the folder's manifest in place: `edit` changes the parsed object."""
    path = folder / "manifest.json"
    content = json.loads(path.read_text())
    edit(content)
    path.write_text(json.dumps(content))


def renamed(name: str):
    """An edit that gives the first file another name wherever the manifest names it."""

    def edit(content):
        content["files"][name] = content["files"].pop(FILE)
        content["tensors"]["w"]["shards"][0]["file"] = name

    return edit


def shard(content: dict, number: int = 0) -> dict:
    """The manifest's entry of shard `number` of the tensor."""
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
    "the folder itself": (renamed("."), "does not lie in it"),
    "no name": (renamed(""), "does not lie in it"),
    "another system's path": (renamed("..\\x"), "does not lie in it"),
    "a number that no array takes": (lambda c: c["tensors"]["w"].update(shape=[0, 1 << 70], shards=[]), "not possible"),
    "a type that is no name": (lambda c: c["tensors"]["w"].__setitem__("dtype", ["float32"]), "unhashable"),
    "a truth value": (lambda c: c["tensors"]["w"].__setitem__("shape", [4, True]), "not possible"),
    "a size that is no number": (lambda c: c["files"][FILE].__setitem__("size", "1"), "TypeError"),
    "checksums that are none": (lambda c: c["files"][FILE].__setitem__("crc32", [1]), "no checksums"),
    "an iteration in words": (lambda c: c.__setitem__("iteration", "one"), "no counts"),
    "a negative iteration": (lambda c: c.__setitem__("iteration", -1), "no counts"),
    "another iteration": (lambda c: c.__setitem__("iteration", 7), "of iteration 7, its folder of another"),
    "half a sample": (lambda c: c.__setitem__("consumed_samples", 0.5), "no counts"),
    "steps in words": (lambda c: c["optimizer"].__setitem__("steps", "1"), "no counts"),
    "a state that is no name": (lambda c: c["optimizer"].__setitem__("state", [1]), "lacks something"),
    "an optimizer that is a list": (lambda c: c.__setitem__("optimizer", [1]), "not a readable manifest"),
    "a schedule that is a list": (lambda c: c.__setitem__("scheduler", [1]), "another kind"),
    "a section that is a number": (lambda c: c["config"].__setitem__("model_config", 3), "another kind"),
    "a random state without its seed": (lambda c: c.__setitem__("rng", {}), "lacks something"),
    "a seed in words": (lambda c: c.__setitem__("rng", {"seed": "x"}), "another kind"),
    "a callback's state that is a list": (lambda c: c.__setitem__("state", {"Counter": [1]}), "another kind"),
    "callbacks that are a list": (lambda c: c.__setitem__("state", [1]), "another kind"),
    "sections that are a list": (lambda c: c.__setitem__("config", [1]), "another kind"),
    "a layout that is a list": (lambda c: c.__setitem__("topology", [1]), "another kind"),
    "a random state that is a list": (lambda c: c.__setitem__("rng", [1]), "another kind"),
    "tensors that are a list": (lambda c: c.__setitem__("tensors", [1]), "not a readable manifest"),
    "files that are a list": (lambda c: c.__setitem__("files", [1]), "not a readable manifest"),
    "an unknown entry": (lambda c: c.__setitem__("run", "rm"), "not a readable manifest"),
    "no tensors": (lambda c: c.pop("tensors"), "not a readable manifest"),
    "one number changed": (lambda c: c["scheduler"].__setitem__("max_lr", 7), "damaged: it does not say"),
}


@pytest.mark.parametrize("name", EDITS)
def test_it_is_refused(folder, name):
    """Each edit of `EDITS` (paths outside, shards twice or missing, impossible sizes, values of another kind, ...) is
    refused with the manifest's path and the reason, and no other file is opened."""
    edit, words = EDITS[name]
    assert Manifest.read(folder).tensors
    change(folder, edit)
    with opened() as files, pytest.raises(ValueError, match=words) as error:
        CheckpointReader(folder)
    assert set(files) == {folder / "manifest.json"} and str(folder / "manifest.json") in str(error.value)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "9" * 10_000, "NaN", "\0"])
def test_json_that_python_itself_stumbles_over(folder, text):
    """A manifest that is nested too deeply for Python's parser, has too many digits, or is no object, is an error that
    names it."""
    (folder / "manifest.json").write_text(text)
    with pytest.raises(ValueError, match=r"manifest\.json: not a readable manifest"):
        Manifest.read(folder)


def test_a_manifest_that_is_a_link_is_not_followed(folder, tmp_path):
    """A manifest.json that is a symbolic link is refused without opening its target."""
    shutil.move(folder / "manifest.json", tmp_path / "elsewhere")
    (folder / "manifest.json").symlink_to(tmp_path / "elsewhere")
    with opened() as files, pytest.raises(ValueError, match="is a link"):
        CheckpointReader(folder)
    assert files == []


def test_a_manifest_without_a_digest_is_of_an_earlier_version(folder):
    """A manifest without a digest, as of an earlier version, is read, also if its JSON was formatted anew."""
    change(folder, lambda content: content.pop("digest"))
    assert re.fullmatch(r"\{\S.*\}", (folder / "manifest.json").read_text())
    assert Manifest.read(folder).iteration == 1


def test_a_tensor_that_is_there_twice_is_refused(folder):
    """A manifest with a key twice is refused; Python's JSON would take the last one."""
    path = folder / "manifest.json"
    text = path.read_text()
    path.write_text(text.replace('"format_version": 1', '"format_version": 1, "iteration": 2'))
    with pytest.raises(ValueError, match="twice"):
        Manifest.read(folder)


def test_a_link_is_refused(folder, tmp_path):
    """A file of tensors that is a symbolic link is refused, though its target has the right bytes."""
    shutil.move(folder / FILE, tmp_path / "elsewhere")
    (folder / FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="is a link"):
        CheckpointReader(folder)
