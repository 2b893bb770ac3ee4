"""`inspect` of a checkpoint of any format: its table, exported arrays, and --check of every byte."""

import numpy as np
import pytest

from parallel_core.checkpoint.inspect import main
from tests.support.checkpoint_cases import digest, facts, unpack
from tests.support.checkpoint_writing import one_tensor, save

OF_EACH = ("hf/qwen2", "legacy/llama_tp2_bf16", "torch_dist/llama_dp2_bf16_distopt_default")


@pytest.mark.parametrize("case", OF_EACH)
def test_arrays_are_those_that_were_recorded(case, tmp_path, capsys):
    """--npz and --optimizer-npz export the recorded weights and states; the table has a line for each weight, and
    --check finds nothing wrong."""
    files = [tmp_path / "weights.npz", tmp_path / "optimizer.npz"]
    arguments = ["--check", "--npz", files[0], "--optimizer-npz", files[1]]
    assert main([str(unpack(case, tmp_path)), *map(str, arguments)]) == 0
    for file, key in zip(files, ("parameters", "optimizer"), strict=True):
        with np.load(file) as arrays:
            assert {name: digest(arrays[name]) for name in arrays.files} == facts(case).get(key, {})
    said = capsys.readouterr().out
    assert all(f"{name} " in said for name in facts(case)["parameters"])
    assert "nothing is wrong" in said and "bfloat16" in said
    assert ("has no arrays" in said) == ("optimizer" not in facts(case))


@pytest.mark.parametrize(
    ("case", "victim"),
    [
        ("legacy/llama_tp2_bf16", "iter_0000010/mp_rank_01/model_optim_rng.pt"),
        ("torch_dist/mixtral_ep2", "iter_0000010/__1_0.distcp"),
    ],
)
def test_a_flipped_bit_is_found(case, victim, tmp_path, capsys):
    """A flipped bit anywhere in a torch.save archive, values included, is found by `inspect --check` with the file's
    name, exit code 1."""
    folder = unpack(case, tmp_path)
    whole = (folder / victim).read_bytes()
    for place in (len(whole) // 3, len(whole) * 2 // 3):
        (folder / victim).write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert main([str(folder), "--check"]) == 1
        assert str(folder / victim) in capsys.readouterr().err


def test_a_flipped_bit_in_ours_is_found(tmp_path, capsys):
    """A flipped bit in the last byte of our format's tensors is found by `inspect --check`, and not looked for without
    it."""
    path = save(tmp_path, 1, [one_tensor(1)]) / "mp_rank_00_000.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert main([str(tmp_path)]) == 0
    assert main([str(tmp_path), "--check"]) == 1
    assert str(path) in capsys.readouterr().err


def test_a_folder_without_a_checkpoint_says_what_is_known(tmp_path, capsys):
    """The error says which formats are known and which files the folder has."""
    (tmp_path / "readme.txt").write_text("")
    assert main([str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert "readme.txt" in said and "manifest.json" in said and "config.json" in said
