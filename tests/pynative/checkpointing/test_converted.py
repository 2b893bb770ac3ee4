"""Checkpoints of other tools, converted or loaded as they are: the tool's logits, runs that go on from them, and the
way back."""

import re

import numpy as np
import pytest

from parallel_core.checkpoint import commit
from parallel_core.checkpoint.convert import formats
from parallel_core.checkpoint.convert.__main__ import main
from parallel_core.checkpoint.convert.model import VOCABULARY
from parallel_core.checkpoint.convert.native import write_native
from tests.support.assets import asset
from tests.support.checkpoint_cases import CASES, digest, facts, unpack
from tests.support.checkpoint_jobs import train
from tests.support.distributed import Failed, outcomes, run
from tests.support.engine import job


def logits_of(backend, folder: str, ids: np.ndarray) -> np.ndarray:
    """Logits that the engine computes in float32 from a checkpoint's weights for these ids [b, s]."""
    from pynative.generation import checkpoint_logits

    with job(backend, checkpoint_logits.config_in_float32(folder)):
        return checkpoint_logits.logits_of(folder, ids)


def converted(case: str, folder) -> object:
    """The folder with a recorded case of another tool converted to our format, weights alone."""
    write_native(formats.read(unpack(case, folder), optimizer=False), folder / "ours")
    return folder / "ours"


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_the_tool(case, tmp_path):
    """Converted weights give the recorded logits, so settings were understood: positions, norms, activations, groups,
    ties, experts, latents."""
    expected = np.load(asset(f"checkpoints/{case}.npz"))
    (found,) = run(1, logits_of, converted(case, tmp_path), expected["input_ids"])
    np.testing.assert_allclose(found, expected["logits"], rtol=0, atol=2e-5)


def test_scaled_rotary_positions_reach_2048_tokens(tmp_path):
    """Llama 3.1's scaling of rotary frequencies: the recorded logits at the end of 2048 tokens, which change by 4
    without it."""
    expected = np.load(asset("checkpoints/hf/llama3_rope_scaling_tied.npz"))
    (found,) = run(1, logits_of, converted("hf/llama3_rope_scaling_tied", tmp_path), expected["long_input_ids"])
    np.testing.assert_allclose(found[:, -16:], expected["long_logits_last16"], rtol=0, atol=1e-4)


LLAMA = (
    "--hidden-size 36 --num-attention-heads 6 --group-query-attention --num-query-groups 2 --ffn-hidden-size 44 "
    "--max-position-embeddings 64 --position-embedding-type rope --normalization RMSNorm --swiglu "
    "--disable-bias-linear --untie-embeddings-and-output-weights --vocab-size 149"
)
OF_MEGATRON = (
    f"{LLAMA} --num-layers 4 --norm-epsilon 1e-6 --bf16 --override-opt_param-scheduler --dataloader-type cyclic"
)


@pytest.mark.parametrize(
    ("case", "flags"),
    [
        ("legacy/llama_tp2_dp2_bf16_distopt", "--padded-vocab-size 160 --pipeline-model-parallel-size 2"),
        ("torch_dist/llama_dp2_bf16_distopt_default", "--padded-vocab-size 152 --tensor-model-parallel-size 2"),
    ],
)
def test_a_run_of_megatron_goes_on(case, flags, tmp_path):
    """--load of Megatron's folder at another layout than it was saved in takes over weights, optimizer, iteration and
    consumed samples."""
    whole, _ = run(2, train, f"{OF_MEGATRON} {flags} --load {unpack(case, tmp_path)}", False)
    assert {name: digest(values) for name, values in whole.weights.items()} == facts(case)["parameters"]
    moments = {name.replace("main_param", "fp32_param"): digest(values) for name, values in whole.moments.items()}
    assert moments == facts(case)["optimizer"]
    assert (whole.iteration, whole.steps) == (10, 10) and whole.consumed_samples > 0


def test_a_run_of_megatron_goes_on_without_its_optimizer(tmp_path):
    """--resume-training beside --no-load-optim goes on at the iteration of Megatron's folder, with an optimizer of no
    steps."""
    folder = unpack("legacy/llama_tp2_dp2_bf16_distopt", tmp_path)
    flags = f"{OF_MEGATRON} --padded-vocab-size 160 --load {folder} --resume-training --no-load-optim"
    (found,) = run(1, train, flags, False)
    assert (found.iteration, found.steps) == (10, 0)


@pytest.mark.parametrize(
    ("flags", "stands"),
    [
        ("", (0, 0)),
        ("--no-load-optim", (0, 0)),
        ("--ckpt-step 7", "there are none"),
        ("--resume-training", "alone"),
        ("--resume-training --no-load-optim", "alone"),
    ],
)
def test_a_release_of_megatron_is_weights_to_begin_with(flags, stands, tmp_path):
    """A `release` checkpoint starts at iteration 0 without optimizer state, as in Megatron; asking for more of it is
    refused."""
    folder = unpack("legacy/llama_tp2_dp2_bf16_distopt", tmp_path)
    (folder / "iter_0000010").rename(folder / "release")
    (folder / commit.TRACKER).write_text("release\n")
    flags = f"{OF_MEGATRON} --padded-vocab-size 160 {flags} --load {folder}"
    (found,) = outcomes(1, train, flags, False)
    if isinstance(stands, str):
        assert isinstance(found, Failed) and stands in found.text
    else:
        assert (found.iteration, found.steps) == stands
        expected = facts("legacy/llama_tp2_dp2_bf16_distopt")["parameters"]
        assert {name: digest(values) for name, values in found.weights.items()} == expected


def test_samples_that_were_not_counted_follow_from_the_iteration(tmp_path):
    """A checkpoint of Megatron's without consumed samples, 10 steps of a batch of 4: data go on at sample 40, as in
    Megatron."""
    flags = f"--use-checkpoint-args --padded-vocab-size 128 --load {unpack('torch_dist/mixtral_ep2', tmp_path)}"
    (found,) = run(1, train, flags, False)
    assert (found.iteration, found.consumed_samples) == (10, 40)


def test_an_iteration_that_megatron_has_not_saved(tmp_path):
    """--ckpt-step of an iteration that Megatron's folder lacks: the error names those that are there."""
    flags = f"{OF_MEGATRON} --padded-vocab-size 160 --ckpt-step 7 --load {unpack('legacy/llama_tp2_bf16', tmp_path)}"
    with pytest.raises(Exception, match=r"no checkpoint of this iteration; there are 10"):
        run(1, train, flags, False)


def test_damage_of_a_megatron_file_ends_the_run_before_it_begins(tmp_path):
    """A flipped bit in an optimizer moment: the rank that reads that file names it, and no rank begins to train."""
    folder = unpack("torch_dist/llama_dp2_bf16_distopt_default", tmp_path)
    victim = next(folder.glob("*/__1_1.distcp"))
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 1
    victim.write_bytes(content)
    flags = f"{OF_MEGATRON} --padded-vocab-size 152 --tensor-model-parallel-size 2 --load {folder}"
    ended = outcomes(2, train, flags, False)
    assert all(isinstance(each, Failed) and "nothing was loaded" in each.text for each in ended)
    assert any(re.search(f"{victim}.*is not what was written", each.text) for each in ended)


def test_training_starts_from_a_model_of_huggingface(tmp_path):
    """--load of a HuggingFace folder on tp2: its weights, the vocabulary padded; iteration and optimizer
    steps are 0."""
    flags = f"{LLAMA} --num-layers 3 --norm-epsilon 1e-5 --padded-vocab-size 152 --tensor-model-parallel-size 2"
    whole, _ = run(2, train, f"{flags} --load {unpack('hf/llama', tmp_path)}", False)
    for name, values in whole.weights.items():
        ids = values[:150] if name in VOCABULARY else values
        assert digest(ids) == facts("hf/llama")["parameters"][name], name
    assert (whole.iteration, whole.steps) == (0, 0)


def test_another_network_is_refused(tmp_path):
    """A flag for another rotary base than the HuggingFace folder's, which no shape betrays, is refused with flag and
    both values."""
    flags = f"{LLAMA} --num-layers 3 --norm-epsilon 1e-5 --padded-vocab-size 150 --rotary-base 500000"
    with pytest.raises(Exception, match=r"--rotary-base 500000: the checkpoint .* has 10000"):
        run(1, train, f"{flags} --load {unpack('hf/llama', tmp_path)}", False)


@pytest.mark.parametrize("flags", ["--norm-epsilon 0.001", "--rotary-base 500000"])
def test_another_network_than_a_run_of_ours_saved_is_refused(flags, tmp_path):
    """Another norm epsilon or rotary base than our checkpoint's is refused with both values; with
    --dist-ckpt-strictness log_all its weights are taken."""
    network = f"{LLAMA} --num-layers 2 --padded-vocab-size 150"
    (before,) = run(1, train, f"{network} --train-iters 1 --save {tmp_path} --save-interval 1")
    again = f"{network} {flags} --load {tmp_path} --finetune"
    with pytest.raises(Exception, match=rf"{flags}: the checkpoint .* has (1e-05|10000.0)\n.*--dist-ckpt-strictness"):
        run(1, train, again, False)
    (found,) = run(1, train, f"{again} --dist-ckpt-strictness log_all", False)
    assert found.weights.keys() == before.weights.keys()
    assert all((found.weights[name] == values).all() for name, values in before.weights.items())


def test_a_run_writes_models_of_huggingface(tmp_path):
    """--enable-mg2hf-convert: each checkpoint has a HuggingFace folder with its weights, without padding."""
    flags = f"{LLAMA} --num-layers 2 --padded-vocab-size 152 --tensor-model-parallel-size 2 --enable-mg2hf-convert"
    whole, _ = run(2, train, f"{flags} --train-iters 1 --save {tmp_path} --save-interval 1 --model-type-hf llama2")
    model = formats.read(commit.find(tmp_path) / "huggingface", "hf")
    assert model.vocab_size == 150 and model.weights.keys() == whole.weights.keys()
    for name, tensor in model.weights.items():
        np.testing.assert_array_equal(tensor.read(), whole.weights[name][: tensor.shape[0]])


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--enable-hf2mg-convert --load {case}", "config.json"),
        ("--enable-mg2hf-convert --use-sandwich-norm", "use_sandwich_norm"),
        ("--enable-mg2hf-convert --model-type-hf baichuan", "baichuan"),
    ],
)
def test_what_huggingface_cannot_hold_is_refused(flags, words, tmp_path):
    """Before a step: a folder that is no HuggingFace model to load, and networks that no HuggingFace family
    can hold."""
    with pytest.raises(Exception, match=words):
        run(1, train, flags.format(case=unpack("legacy/llama_tp2_bf16", tmp_path)), False)


def test_a_run_with_shared_out_states_goes_to_megatron(tmp_path):
    """A bfloat16 run whose optimizer states are cut over two replicas is converted to Megatron's files for tp2, with
    whole tensors and states."""
    flags = f"{LLAMA} --num-layers 2 --padded-vocab-size 152 --bf16 --use-distributed-optimizer --train-iters 1"
    whole, _ = run(2, train, f"{flags} --save {tmp_path / 'ours'} --save-interval 1")
    arguments = ["--input", tmp_path / "ours", "--output", tmp_path / "theirs", "--to", "megatron", "--logits", "no"]
    sizes = ["--tensor-model-parallel-size", 2, "--make-vocab-size-divisible-by", 4]
    assert main([str(argument) for argument in (*arguments, *sizes)]) == 0
    model = formats.read(tmp_path / "theirs", "megatron")
    expected = whole.weights | whole.moments
    assert dict(model.all_tensors()).keys() == expected.keys()
    for name, tensor in model.all_tensors():
        np.testing.assert_array_equal(tensor.widened()[:150], expected[name][:150], err_msg=name)
