"""The operators that a command line's switches fuse."""

import pytest

from tests.support.engine import TINY, config_of

LLAMA = "--normalization RMSNorm --swiglu --position-embedding-type rope --use-rotary-position-embeddings"
ALL = "--use-flash-attn --use-fused-rmsnorm --use-fused-swiglu"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("", ()),
        ("--use-flash-attn", ("attention",)),
        (LLAMA, ("rotary",)),
        (f"{LLAMA} --no-rope-fusion", ()),
        (f"{LLAMA} {ALL}", ("attention", "rotary", "bias_activation", "rms_norm")),
        (f"{LLAMA} {ALL} --no-rope-fusion", ("attention", "bias_activation", "rms_norm")),
    ],
)
def test_switches_become_operators(flags, expected):
    """The flags give the set of fused operators; rotary positions are fused, as in Megatron, wherever the model has
    them, unless --no-rope-fusion."""
    assert config_of(f"{TINY} {flags}", 1).parallel_config.fused.operators == expected


def test_the_layout_of_heads_comes_along():
    """--shape-order becomes the input layout of the fused attention operator."""
    assert config_of(f"{TINY} --use-flash-attn --shape-order BNSD", 1).parallel_config.fused.input_layout == "BNSD"
