"""Checkpoints of runs with low-rank adapters: base and adapters loaded apart and together, and merged for tools that
have no adapters."""

from pathlib import Path

import numpy as np
import pytest

from parallel_core.checkpoint.convert.__main__ import main
from parallel_core.checkpoint.convert.native import read_native
from parallel_core.checkpoint.inspect import main as inspect
from tests.support.checkpoint_jobs import assert_same, train
from tests.support.distributed import run

LLAMA = (
    "--swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear --ffn-hidden-size 48 "
    "--untie-embeddings-and-output-weights --lr 1e-2"
)
LORA = "--lora-r 4 --lora-target-modules linear_qkv linear_proj linear_fc1 linear_fc2"


def trained(directory: Path, flags: str, world: int = 1, **how):
    return run(world, train, f"{LLAMA} --save {directory} {flags}", **how)[0]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """(base's folder, adapters' folder, outcomes of both runs): two steps of all weights on one rank, then two of
    adapters on them on tp2."""
    base, adapted = (tmp_path_factory.mktemp(name) for name in ("base", "adapted"))
    whole = trained(base, "")
    tuned = trained(adapted, f"{LORA} --load {base} --tensor-model-parallel-size 2 --sequence-parallel", 2)
    return base, adapted, whole, tuned


def adapters_of(weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: values for name, values in weights.items() if ".adapter." in name}


def test_adapters_begin_on_a_base_that_stays(folders):
    """Adapters loaded onto a base begin at iteration 0; after two steps the base's weights are unchanged, and adapters
    alone have optimizer moments."""
    _, _, whole, tuned = folders
    assert tuned.iteration == tuned.steps == 2
    for name, values in whole.weights.items():
        np.testing.assert_array_equal(tuned.weights[name], values, err_msg=name)
    trained_names = adapters_of(tuned.weights).keys()
    assert trained_names == tuned.weights.keys() - whole.weights.keys()
    assert {name.partition(".")[2] for name in tuned.moments} == trained_names


def test_a_run_with_adapters_goes_on_at_another_layout(folders):
    """A tp2 checkpoint with adapters loads on pp2: weights, states and iteration are those of the run that saved."""
    _, adapted, _, tuned = folders
    found = run(2, train, f"{LLAMA} {LORA} --load {adapted} --pipeline-model-parallel-size 2", steps=False)[0]
    assert_same(found, tuned)
    assert found.iteration == 2


def test_adapters_alone_are_taken_from_another_checkpoint(folders):
    """--lora-load takes only adapters from a second checkpoint: the base is --load's, moments and iteration are 0."""
    base, adapted, whole, tuned = folders
    found = run(1, train, f"{LLAMA} {LORA} --load {base} --lora-load {adapted}", steps=False)[0]
    for name, values in adapters_of(tuned.weights).items():
        np.testing.assert_array_equal(found.weights[name], values, err_msg=name)
    for name, values in whole.weights.items():
        np.testing.assert_array_equal(found.weights[name], values, err_msg=name)
    assert found.iteration == 0 and not any(values.any() for values in found.moments.values())


def test_a_base_alone_begins_with_adapters_that_change_nothing(folders):
    """The first loss on a base with new adapters, whose B is zero, is that without adapters, to the bit."""
    base, *_ = folders
    losses = [run(1, train, f"{LLAMA} {flags} --load {base} --finetune")[0].losses[0] for flags in ("", LORA)]
    assert losses[0] == losses[1]


def test_who_has_no_adapters_names_those_that_are_too_many(folders):
    """A model without adapters refuses a checkpoint that has them; the error names an adapter's parameter."""
    _, adapted, *_ = folders
    with pytest.raises(Exception, match=r"linear_qkv.adapter.lora_a: .* has it, the model does not"):
        run(1, train, f"{LLAMA} --load {adapted}", steps=False)


def test_inspecting_shows_adapters_and_their_states(folders, tmp_path, capsys):
    """`inspect` writes adapters and their moments as they are stored, not merged into the base as converters do."""
    _, adapted, _, tuned = folders
    files = [str(tmp_path / name) for name in ("weights.npz", "states.npz")]
    assert inspect([str(adapted), "--npz", files[0], "--optimizer-npz", files[1]]) == 0
    assert "2 steps of the optimizer" in capsys.readouterr().out
    for file, expected in zip(files, (tuned.weights, tuned.moments), strict=True):
        with np.load(file) as found:
            assert set(found) == expected.keys()
            assert all(np.array_equal(found[name], values) for name, values in expected.items())


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("", r"has adapters; give --lora-r 4 --lora-alpha 32.0 --lora-target-modules linear_qkv linear_proj"),
        (f"{LORA} --lora-r 2", r"linear_qkv.adapter.lora_a: \[4, 32\] in .* \[2, 32\] in the model"),
    ],
)
def test_a_run_with_other_flags_is_told_what_to_give(folders, flags, said):
    """Loading adapters without --lora-r, or with another, is an error that gives the flags, or both shapes."""
    with pytest.raises(Exception, match=said):
        run(1, train, f"{LLAMA} {flags} --load {folders[1]}", steps=False)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--load {base} --lora-load {adapted}", r"linear_fc1.adapter.lora_a: .* has it, the model does not"),
        (
            "--load {base} --lora-load {base}",
            r"lora_a: the model has it, the checkpoint .* does not",
        ),
        ("--load {base} --resume-training", r"--resume-training: .* has no adapters"),
    ],
)
def test_adapters_that_are_not_those_of_the_run_are_refused(folders, flags, said):
    """A checkpoint with adapters on more modules than the run has, on none, and one without any behind
    --resume-training: each refused by name."""
    base, adapted, *_ = folders
    fewer = "--lora-r 4 --lora-target-modules linear_qkv linear_proj"
    with pytest.raises(Exception, match=said):
        run(1, train, f"{LLAMA} {fewer} {flags.format(base=base, adapted=adapted)}", steps=False)


@pytest.mark.parametrize(("kind", "logits"), [("hf", "yes"), ("megatron", "no"), ("native", "no")])
def test_converting_merges(folders, tmp_path, capsys, kind, logits):
    """The logits of the checkpoint with adapters are those of the converted one without."""
    _, adapted, *_ = folders
    options = ["--input", str(adapted), "--output", str(tmp_path / "out"), "--to", kind, "--logits", logits]
    assert main(options) == 0
    lines = capsys.readouterr().out
    assert "8 adapters merged" in lines and ("logits of a small prompt: equal" in lines) == (logits == "yes")


def test_what_is_merged(folders):
    """The merged weight is W + (alpha / r) B A, to the bit."""
    _, adapted, _, tuned = folders
    found = read_native(adapted / "iter_0000002").weights
    assert not any(".adapter." in name for name in found)
    weight = "decoder.layers.1.mlp.linear_fc1"
    a, b = (tuned.weights[f"{weight}.adapter.lora_{letter}"] for letter in "ab")
    expected = tuned.weights[f"{weight}.weight"] + np.float32(32 / 4) * (b @ a)
    np.testing.assert_array_equal(found[f"{weight}.weight"].read(), expected)
