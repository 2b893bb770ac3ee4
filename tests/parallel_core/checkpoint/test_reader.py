"""The reader of our checkpoints: errors are found by manifest, sizes and headers, before values are read."""

import json

import numpy as np
import pytest

from parallel_core.checkpoint.manifest import MANIFEST, Manifest
from parallel_core.checkpoint.reader import CheckpointReader
from parallel_core.sharding import Cut, ShardSpec
from tests.support.checkpoint_writing import one_tensor, run_at, save

FILE = "mp_rank_00_000.safetensors"
SPEC, _ = one_tensor(1)["w"]


@pytest.fixture
def checkpoint(tmp_path):
    """A checkpoint of iteration 3 with one tensor."""
    return save(tmp_path, 3, [one_tensor(1)])


def test_the_manifest_comes_back_as_it_was_written(checkpoint):
    """Each field of the run that was written is read again."""
    manifest, run = Manifest.read(checkpoint), run_at(3)
    assert {name: getattr(manifest, name) for name in vars(run)} == vars(run)
    assert manifest.weights == ["w"]


def test_optimizer_state_is_not_counted_as_weights(tmp_path):
    """`Manifest.weights` lists weights alone; moments are tensors named STATE.WEIGHT."""
    moments = ShardSpec(name="w", shape=(4, 2), cuts=(Cut(0),)), np.zeros((4, 2), np.float32)
    manifest = Manifest.read(save(tmp_path, 1, [one_tensor(1) | {"exp_avg.w": moments}]))
    assert manifest.weights == ["w"] and set(manifest.tensors) == {"w", "exp_avg.w"}


def test_a_name_the_checkpoint_lacks(checkpoint):
    """A parameter of the model that the checkpoint lacks is reported by name."""
    assert "other: the model has it" in CheckpointReader(checkpoint).problem("other", SPEC)


def test_another_shape_names_both(checkpoint):
    """A parameter of another shape, such as a vocabulary padded otherwise, is reported with the checkpoint's and the
    model's shape."""
    text = CheckpointReader(checkpoint).problem("w", ShardSpec(name="w", shape=(8, 2), cuts=(Cut(0),)))
    assert "w: [4, 2] in" in text and "[8, 2] in the model" in text


def test_a_file_that_is_missing(checkpoint):
    """A file of tensors that is missing is reported with its path."""
    (checkpoint / FILE).unlink()
    (text,) = CheckpointReader(checkpoint).damaged_files()
    assert str(checkpoint / FILE) in text and "missing" in text


def test_a_file_that_is_cut_off(checkpoint):
    """A file that lacks its last byte is reported by its size in the manifest and, for a tensor of it, by its own
    header."""
    (checkpoint / FILE).write_bytes((checkpoint / FILE).read_bytes()[:-1])
    reader = CheckpointReader(checkpoint)
    assert ["cut off" in text for text in reader.damaged_files()] == [True]
    assert "cut off" in reader.problem("w", SPEC)


def test_ranks_can_share_the_checking(tmp_path):
    """`damaged_files(i, n)` over all n shares checks each file exactly once."""
    checkpoint = save(tmp_path, 1, [one_tensor(1)], tensor_size=4)
    for path in checkpoint.glob("*.safetensors"):
        path.unlink()
    reader = CheckpointReader(checkpoint)
    assert len(reader.damaged_files()) == 4
    assert sorted(reader.damaged_files(0, 3) + reader.damaged_files(1, 3) + reader.damaged_files(2, 3)) == sorted(
        reader.damaged_files()
    )


def test_a_tensor_that_its_file_does_not_hold(checkpoint):
    """A tensor that is not in the file which the manifest names, as when another checkpoint's file has its name, is
    reported."""
    other = save(checkpoint.parent / "other", 3, [{"v": (SPEC.named("v"), np.zeros((4, 2), np.float32))}])
    (checkpoint / FILE).write_bytes((other / FILE).read_bytes())
    assert "w is not there" in CheckpointReader(checkpoint).problem("w", SPEC)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format_version": 99}', None])
def test_a_damaged_manifest_is_named(checkpoint, text):
    """A manifest that is empty, of another form, of a later version or missing is an error that names it."""
    path = checkpoint / MANIFEST
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(ValueError, match=MANIFEST):
        CheckpointReader(checkpoint)


def test_the_manifest_is_plain_json(checkpoint):
    """Another program can find each tensor's file, and its size, in the manifest's JSON."""
    content = json.loads((checkpoint / MANIFEST).read_text())
    assert content["tensors"]["w"]["shards"][0]["file"] == FILE
    assert content["files"][FILE]["size"] == (checkpoint / FILE).stat().st_size
