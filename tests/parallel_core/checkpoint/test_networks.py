"""`differences`: the settings by which two configurations are different networks, and networks that other tools' files
cannot say."""

import pytest

from parallel_core.checkpoint.convert.huggingface.config import matching_family
from parallel_core.checkpoint.convert.megatron.args import _entry, _is_written, args_in, arguments_of
from parallel_core.checkpoint.networks import differences
from parallel_core.checkpoint.torch_files.archive import read_archive
from parallel_core.config.tree import OF_MODEL, OPTIONS
from tests.support.checkpoint_cases import unpack
from tests.support.engine import TINY, config_of

ROPE = "--position-embedding-type rope"
LLAMA = f"{ROPE} --normalization RMSNorm --swiglu --disable-bias-linear"
LONG = f"{LLAMA} --rope-scaling-type longrope --long-factor 1,2,3,4 --short-factor 1,1,1,1"
EXPERTS = "--num-experts 4 --moe-router-topk 2"
STATES = "--hybrid-override-pattern M* --mamba-num-heads 4 --mamba-head-dim 8 --mamba-num-groups 2"
DELTA = "--experimental-attention-variant gated_delta_net --linear-attention-freq 2"


def network(flags: str):
    """The config of TINY's model with these flags."""
    return config_of(f"{TINY} {flags}", 1)


OTHERWISE = [
    (LONG, "--long-factor 1,2,3,9", "rope_scaling.long_factor"),
    (LONG, "--short-factor 1,1,1,2", "rope_scaling.short_factor"),
    (LONG, "--long-mscale 2", "rope_scaling.long_mscale"),
    (LONG, "--short-mscale 2", "rope_scaling.short_mscale"),
    (LONG, "--rope-scaling-original-max-position-embeddings 8", "rope_scaling.original_max_position_embeddings"),
    (
        f"{LONG} --rope-scaling-original-max-position-embeddings 8",
        "--max-position-embeddings 64",
        "max_position_embeddings",
    ),
    (LLAMA, "--pre-tockens 5", "fa_config.pre_tokens"),
    (f"{LLAMA} --pre-tockens 5", "--pre-tockens 7", "fa_config.pre_tokens"),
    (f"{LLAMA} --pre-tockens 5", "--sparse-mode 2", "fa_config.pre_tokens"),
    (EXPERTS, "--moe-router-load-balancing-type sinkhorn", "moe_router_load_balancing_type"),
    (EXPERTS, "--moe-router-load-balancing-type sparsemixer_topk", "moe_router_load_balancing_type"),
    (
        f"{EXPERTS} --moe-router-load-balancing-type sparsemixer_topk",
        "--moe-input-jitter-eps 0.3",
        "moe_input_jitter_eps",
    ),
    ("", "--norm-epsilon 1e-6", "norm_epsilon"),
    (LLAMA, "--rotary-base 20000", "rotary_base"),
    ("", "--hidden-act geglu", "hidden_act"),
    (STATES, "--mamba-d-conv 3", "hybrid.mamba_d_conv"),
    (STATES, "--mamba-multipliers 1 1 1 1 2", "hybrid.mamba_multipliers"),
    (STATES, "--key-multiplier 2", "scales.key"),
    (LLAMA, "--gate-multiplier 2", "scales.gate"),
]
"""(flags of a network, a flag that makes it another one, the setting that differs)."""

ALIKE = [
    ("", "--rotary-base 20000 --rotary-percent 0.5"),
    ("--squared-relu", "--no-bias-gelu-fusion"),
    (LLAMA, "--use-fused-rmsnorm --max-position-embeddings 64"),
    (LLAMA, "--pre-tockens 16"),
    (LLAMA, "--rope-scaling-factor 4 --beta-fast 3"),
    (EXPERTS, "--moe-router-load-balancing-type none"),
    (EXPERTS, "--moe-router-pre-softmax --norm-topk-prob"),
    (f"{EXPERTS} --moe-router-score-function sigmoid", "--moe-router-pre-softmax --norm-topk-prob"),
    (EXPERTS, "--moe-router-num-groups 2 --moe-router-group-topk 2"),
    (EXPERTS, "--moe-input-jitter-eps 0.3 --moe-token-dispatcher-type alltoall"),
    ("--num-layers 4 --num-experts 4 --moe-layer-freq 2", "--moe-layer-freq [1,0,1,0]"),
    (f"{LLAMA} --sliding-window 4", "--window-attn-skip-freq 9"),
    ("", "--mamba-d-conv 3"),
    (STATES, "--side-by-side-weights 2 1"),
    (DELTA, "--mamba-d-conv 3"),
]
"""(flags of a network, flags that leave it the same network)."""


@pytest.mark.parametrize(("flags", "more", "setting"), OTHERWISE)
def test_another_network_is_told_by_the_setting(flags, more, setting):
    """Two networks that one flag makes different differ in exactly that setting."""
    found = differences(network(flags), network(f"{flags} {more}"))
    assert [difference.path.partition(".")[2] for difference in found] == [setting]


@pytest.mark.parametrize(("flags", "more"), ALIKE)
def test_what_says_the_same_network_is_no_difference(flags, more):
    """Flags that do not change what the model computes (fused operators, settings of positions it does not have) give
    no difference."""
    assert differences(network(flags), network(f"{flags} {more}")) == []


def test_what_follows_from_another_setting_is_not_told():
    """A network with experts differs from a dense one in the number of experts; the router's settings are not listed
    besides."""
    found = differences(network(""), network(f"{EXPERTS} --moe-router-pre-softmax --moe-router-topk-scaling-factor 2"))
    assert [difference.path for difference in found] == ["moe_config.num_experts"]


@pytest.mark.parametrize(
    "flags",
    [
        f"{LLAMA} --pre-tockens 5",
        f"{LLAMA} {EXPERTS} --moe-router-load-balancing-type sinkhorn",
        f"{LLAMA} {EXPERTS} --moe-router-load-balancing-type sparsemixer_topk",
    ],
)
def test_no_family_of_huggingface_is_taken_for_it(flags):
    """A network that no HuggingFace family computes (a window by --pre-tockens, other routers) is refused, though
    without these flags it is a llama or mixtral."""
    with pytest.raises(ValueError, match="no model of HuggingFace's"):
        matching_family(network(flags))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (LONG, "--rope-scaling-type longrope"),
        (f"{LLAMA} --pre-tockens 5", "--pre-tockens 5"),
        (f"{EXPERTS} --moe-router-load-balancing-type sparsemixer_topk", "--moe-router-load-balancing-type sparse"),
        ("--geglu", "--hidden-act geglu"),
        ("--position-embedding-type alibi", "--position-embedding-type alibi"),
        (f"{LLAMA} --rope-scaling-type yarn", "--rope-scaling-type yarn"),
        (f"{LLAMA} --add-dense-bias", "out_proj_has_bias is True"),
        ("--no-post-layer-norm", "use_final_norm is False"),
        (STATES.replace("M*", "H*"), "--hybrid-override-pattern H"),
        (f"{STATES} --mamba-d-conv 3", "--mamba-d-conv 3"),
    ],
)
def test_no_args_of_megatron_say_it(flags, words):
    """A setting that Megatron's args cannot say is refused with the flag when they are written."""
    with pytest.raises(ValueError, match=words):
        arguments_of(network(flags))


def test_sinkhorn_and_fused_norms_are_megatrons():
    """Sinkhorn routing and RMSNorm, fused or not, are written under Megatron's own names."""
    args = arguments_of(
        network(f"{EXPERTS} --moe-router-load-balancing-type sinkhorn --normalization RMSNorm --use-fused-rmsnorm")
    )
    assert (args["moe_router_load_balancing_type"], args["normalization"]) == ("sinkhorn", "RMSNorm")


def test_entries_of_megatrons_args_are_its_own(tmp_path):
    """All names under which model settings are exported occur in the args of a checkpoint that Megatron saved."""
    folder = unpack("legacy/moe_ep2_grouped_gemm_bf16_distopt", tmp_path)
    entries = args_in(read_archive(next(folder.rglob("model_optim_rng.pt"))))
    written = {_entry(path) for path in OF_MODEL if OPTIONS[path].of != "run" and _is_written(path)}
    assert len(written) > 30 and written <= entries.keys()


@pytest.mark.parametrize(
    ("flags", "more"),
    [(f"{ROPE} --rope-scaling-type dynamic", "--rope-scaling-factor 4"), (LONG, "--long-factor 9,9,9,9")],
)
def test_what_does_nothing_in_sequences_of_a_run_makes_another_network_all_the_same(flags, more):
    """A setting that acts only in sequences longer than the run's is still a difference."""
    assert len(differences(network(flags), network(f"{flags} {more}"))) == 1
