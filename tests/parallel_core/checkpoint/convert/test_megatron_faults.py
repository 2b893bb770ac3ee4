"""Megatron's checkpoint folders with something missing, left over or mixed: refused, with the file or the parameter
named."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from parallel_core.checkpoint.convert import formats
from parallel_core.checkpoint.convert.huggingface.write import add_huggingface
from parallel_core.checkpoint.convert.megatron import names, torch_dist
from parallel_core.checkpoint.convert.megatron.optimizer import loss_scaler_of
from parallel_core.checkpoint.convert.megatron.shards import RankFile
from parallel_core.checkpoint.convert.reader import open_checkpoint
from parallel_core.checkpoint.lazy import of_array
from parallel_core.checkpoint.torch_files.archive import read_archive
from tests.support.checkpoint_cases import unpack
from tests.support.damage import flip

EXPERTS = "legacy/mixtral_ep2_te_grouped_names"
LEGACY, TORCH_DIST = "legacy/mixtral_tp2_pp2_ep2", "torch_dist/mixtral_ep2"


def iteration(case: str, folder: Path) -> Path:
    """The `iter_*` folder of an unpacked case."""
    return next(unpack(case, folder).glob("iter_*"))


FAULTS = {
    "no settings": (TORCH_DIST, lambda f: (f / "common.pt").unlink(), "common.pt: missing"),
    "not ended": (TORCH_DIST, lambda f: (f / "metadata.json").unlink(), "metadata.json: missing"),
    "another kind": (TORCH_DIST, lambda f: (f / "metadata.json").write_text('{"sharded_backend": "zarr"}'), "'zarr'"),
    "not readable": (
        TORCH_DIST,
        lambda f: (f / "metadata.json").write_text('{"sharded'),
        "metadata.json: not readable",
    ),
    "a stage": (LEGACY, lambda f: [shutil.rmtree(p) for p in f.glob("*_001_*")], r"stage\(s\) \[1\]"),
    "an expert rank": (EXPERTS, lambda f: shutil.rmtree(f / "mp_rank_00_001"), r"local_experts\.\d.*missing"),
    "a tensor rank": (LEGACY, lambda f: [shutil.rmtree(p) for p in f.glob("mp_rank_01_*")], "not whole"),
    "another layout": (
        LEGACY,
        lambda f: shutil.copytree(f / "mp_rank_01_001_001", f / "mp_rank_02_001_001"),
        "mp_rank_02_001_001.*of rank 2",
    ),
    "twice": (
        LEGACY,
        lambda f: shutil.copytree(f / "mp_rank_01_001_001", f / "mp_rank_1_001_001"),
        "mp_rank_1_001_001.*of the same rank as .*mp_rank_01_001_001",
    ),
    "another form": (
        LEGACY,
        lambda f: shutil.copytree(f / "mp_rank_01_001_001", f / "mp_rank_01_001"),
        r"mp_rank_01_001: its name has 1 number",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named(fault, tmp_path):
    """Each fault, as a full disk, an unfinished copy or two runs in one folder leave it, is an error with the folder
    and the cause."""
    case, damage, words = FAULTS[fault]
    folder = iteration(case, tmp_path)
    damage(folder)
    with pytest.raises(ValueError, match=words) as error:
        formats.read(folder.parent)
    assert str(folder) in str(error.value)


def test_files_of_two_iterations_are_not_mixed(tmp_path, monkeypatch):
    """A rank's file of another iteration than the others' is refused with both iterations, although all shapes fit."""
    folder, content = iteration(LEGACY, tmp_path), RankFile.__init__

    def changed(self, path, values, *place):
        content(self, path, values | ({"iteration": 5} if path.parent.name.endswith("001_001") else {}), *place)

    monkeypatch.setattr(RankFile, "__init__", changed)
    with pytest.raises(ValueError, match=r"mp_rank_01_001_001.*of iteration 5.* of 10"):
        formats.read(folder)


def test_a_tied_output_layer_is_a_copy(tmp_path):
    """The last stage's copy of a tied word embedding that differs from it is refused: it would otherwise be dropped
    unnoticed."""
    folder = iteration("legacy/gpt2_tp2_pp2_before_core", tmp_path)
    path = folder / "mp_rank_01_001" / "model_optim_rng.pt"
    copy = read_archive(path)["model"]["word_embeddings_for_head"]["weight"]
    flip(path, copy.storage.offset + 4 * copy.first)
    with pytest.raises(ValueError, match=r"output_layer\.weight is no copy") as error:
        formats.read(folder)
    assert str(folder) in str(error.value)


@pytest.mark.parametrize("case", [LEGACY, TORCH_DIST])
def test_a_release_is_found_beside_iterations(case, tmp_path):
    """latest_checkpointed_iteration.txt may hold the word `release`, which names that folder."""
    folder = iteration(case, tmp_path)
    shutil.copytree(folder, folder.parent / "release")
    shutil.rmtree(folder)
    (folder.parent / "latest_checkpointed_iteration.txt").write_text("release\n")
    assert formats.recognise(folder.parent)[1].name == "release"


@pytest.mark.parametrize(("key", "words"), [("decoder.extra.weight", "no such parameter"), (None, "missing")])
def test_parameters_that_are_not_the_networks(key, words, tmp_path, monkeypatch):
    """A parameter beyond those of the settings, or a missing one, is refused with its name: the rest would load, and
    compute something else."""
    folder, read = iteration(TORCH_DIST, tmp_path), torch_dist.read_tensors

    def changed(folder):
        tensors = read(folder)
        norm = tensors.pop("decoder.final_layernorm.weight")
        return tensors | ({key: norm, "decoder.final_layernorm.weight": norm} if key else {})

    monkeypatch.setattr(torch_dist, "read_tensors", changed)
    with pytest.raises(ValueError, match=f"{key or 'decoder.final_layernorm.weight'}: .*{words}"):
        formats.read(folder)


@pytest.mark.parametrize("case", [LEGACY, TORCH_DIST])
def test_damage_is_found_where_a_run_loads(case, tmp_path):
    """A flipped bit is found by the checksums of torch.save's archives when ranks share the checking before a load:
    exactly one rank reports the file."""
    folder = iteration(case, tmp_path)
    victim = max(folder.rglob("*.*t*"), key=lambda path: path.stat().st_size)
    assert [open_checkpoint(folder).damaged_files(rank, 2) for rank in range(2)] == [[], []]
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 4
    victim.write_bytes(content)
    (found,) = [problem for rank in range(2) for problem in open_checkpoint(folder).damaged_files(rank, 2)]
    assert str(victim) in found


@pytest.mark.parametrize(("name", "shape"), [("weight1", (4, 3)), ("weight2", (3, 4)), ("weight1", (12,))])
def test_fused_experts_that_do_not_divide_are_named(name, shape):
    """A fused weight whose axis of widths does not divide into the experts is an error that names it."""
    fused = {f"decoder.layers.0.mlp.experts.{name}": of_array(np.zeros(shape, np.float32))}
    with pytest.raises(ValueError, match=rf"experts\.{name}: .* is not that of 2 experts"):
        names.apart(fused, 0, 2)


def test_a_loss_scaler_without_a_number_is_named(tmp_path):
    """A file's loss scaler that lacks one of its numbers is an error that names the file and the number."""
    content = {"optimizer": {"grad_scaler": {"scale": 2.0, "growth_tracker": 1}}}
    with pytest.raises(ValueError, match=rf"{tmp_path}: the optimizer's grad_scaler has no hysteresis_tracker"):
        loss_scaler_of(content, tmp_path)


def test_a_checkpoint_that_is_not_there_gets_no_folder(tmp_path):
    """`add_huggingface` of a folder without a checkpoint is an error, and makes no folder in it."""
    with pytest.raises((ValueError, FileNotFoundError), match="manifest"):
        add_huggingface(tmp_path / "none", None)
    with pytest.raises((ValueError, FileNotFoundError), match="manifest"):
        add_huggingface(tmp_path, None)
    assert not list(tmp_path.iterdir())
