"""Frequencies and angles of rotary positions."""

import numpy as np

from parallel_core.attention.rotary import Rotary, inverse_frequencies, llama3, yarn
from parallel_core.blocks import LatentAttention
from parallel_core.config.families import RopeScalingConfig
from tests.support.engine import TINY, config_of


def test_llama3_stretches_long_wavelengths_only():
    """LLaMA 3's scaled frequencies equal its definition: short wavelengths unchanged, long ones divided by the factor,
    those between interpolated."""
    scaling = RopeScalingConfig(type="llama3", factor=8.0)
    inverse = 1 / 500000.0 ** (np.arange(0, 128, 2) / 128)
    scaled, wavelength = llama3(inverse, scaling), 2 * np.pi / inverse
    short, long = wavelength < 8192 / 4, wavelength > 8192 / 1
    np.testing.assert_array_equal(scaled[short], inverse[short])
    np.testing.assert_allclose(scaled[long], inverse[long] / 8, rtol=1e-12)
    smooth = (8192 / wavelength[~short & ~long] - 1) / (4 - 1)
    between = (1 - smooth) * inverse[~short & ~long] / 8 + smooth * inverse[~short & ~long]
    np.testing.assert_allclose(scaled[~short & ~long], between, rtol=1e-12)
    assert short.any() and long.any() and len(between) > 3


def test_yarn_leaves_fast_pairs_and_stretches_slow_ones():
    """Pairs 0..9 of 32, which turn more than 32 times in 4096 positions (Megatron's constants), keep their frequencies;
    those from 23 on, which turn less than once, are stretched in full; between them the stretched share grows
    linearly."""
    inverse = inverse_frequencies(64)
    scaled = yarn(inverse, RopeScalingConfig(type="yarn"), 10000.0, 40.0)
    stretched = (1 - scaled / inverse) / (1 - 1 / 40)
    np.testing.assert_allclose(stretched, np.clip((np.arange(32) - 10) / 13, 0, 1), atol=1e-6)


def test_latent_attention_has_angles_and_a_scale_of_its_own():
    """Latent attention's positions are yarn's unless --rope-type says otherwise, with a factor of 1 by default;
    Megatron's and MindSpeed-LLM's flags give the same angles, magnitude and scale of scores."""
    latent = "--multi-latent-attention --kv-lora-rank 8 --qk-head-dim 12 --qk-pos-emb-head-dim 4"
    megatron = "--rotary-scaling-factor 40 --mscale 0.707 --mscale-all-dim 1"
    mindspeed = (
        "--position-embedding-type rope --rope-scaling-type yarn --rope-scaling-factor 40 --rope-scaling-mscale 0.707 "
        "--rope-scaling-mscale-all-dim 1"
    )
    plain, one, other, unstretched = (
        LatentAttention.of(config_of(f"{TINY} {latent} {flags}", 1).model_config, 0)
        for flags in ("", megatron, mindspeed, f"{megatron} --rope-type rope")
    )
    assert one == other and one.rotary.magnitude == (0.0707 * np.log(40) + 1) / (0.1 * np.log(40) + 1)
    assert plain.rotary == Rotary(tuple(inverse_frequencies(4).tolist()), interleaved=True) == unstretched.rotary
    assert plain.core_attention.scale == 0.25
    scale = (0.1 * np.log(40) + 1) ** 2 / 4
    assert one.core_attention.scale == unstretched.core_attention.scale == scale


def test_a_share_of_latent_attentions_channels_rotates_where_nothing_is_stretched():
    """--rotary-percent 0.5 rotates half of latent attention's rotary channels with --rope-type rope and all of them
    with yarn, as in Megatron."""
    latent = "--multi-latent-attention --kv-lora-rank 8 --qk-pos-emb-head-dim 4 --rotary-percent 0.5"
    pairs = [
        len(LatentAttention.of(config_of(f"{TINY} {latent} {kind}", 1).model_config, 0).rotary.inverse_frequencies)
        for kind in ("--rope-type rope", "--rope-type yarn")
    ]
    assert pairs == [1, 2]


def test_longrope_divides_by_the_list_for_the_length():
    """Frequencies are divided by --short-factor where the sequence (TINY: 16 positions) is within the original length,
    by --long-factor where it is longer; the magnitude is computed then, or that of --long-mscale."""
    lists = "--rope-scaling-type longrope --long-factor 1,2,4,8 --short-factor 1,1,1,2 --position-embedding-type rope"
    length = "--rope-scaling-original-max-position-embeddings"
    short, long, said = (rotary(f"{lists} {more}") for more in ("", f"{length} 8", f"{length} 8 --long-mscale 1.5"))
    plain = inverse_frequencies(8)
    np.testing.assert_allclose(short.inverse_frequencies, plain / [1, 1, 1, 2], rtol=1e-6)
    np.testing.assert_allclose(long.inverse_frequencies, plain / [1, 2, 4, 8], rtol=1e-6)
    assert (short.magnitude, said.magnitude) == (1.0, 1.5)
    assert np.isclose(long.magnitude, np.sqrt(1 + np.log(2) / np.log(8)))
    cos, sin = said.tables((range(3, 4),))
    np.testing.assert_allclose(cos**2 + sin**2, 1.5**2, rtol=1e-6)


def test_dynamic_scaling_has_a_larger_base():
    """The base is that of dynamic NTK-aware scaling for sequences of twice the original length; within the original
    length the frequencies are the plain ones."""
    scaled = rotary("--position-embedding-type rope --rope-scaling-type dynamic --rope-scaling-factor 4 "
                    "--rope-scaling-original-max-position-embeddings 8")  # fmt: skip
    expected = inverse_frequencies(8, base=10000.0 * (4 * 2 - 3) ** (8 / 6))
    np.testing.assert_allclose(scaled.inverse_frequencies, expected, rtol=1e-6)
    within = rotary("--position-embedding-type rope --rope-scaling-type dynamic")
    assert within == Rotary(tuple(inverse_frequencies(8).tolist()))


def rotary(flags: str) -> Rotary | None:
    """`Rotary.of` for TINY's model with `flags`, whose heads have 8 channels; None without rotary positions."""
    return Rotary.of(config_of(f"{TINY} {flags}", 1).model_config)


def test_a_model_without_rotary_positions_has_none():
    """Learned positions (the default) and --position-embedding-type none give no rotary setting."""
    assert rotary("") is None and rotary("--position-embedding-type none") is None


def test_every_setting_changes_the_angles():
    """--rotary-base, --rotary-percent, --use-rope-scaling, the interpolation factor and --rotary-interleaved each give
    other angles than the plain ones; tables are [positions, rotating channels]."""
    rope = "--position-embedding-type rope"
    plain = rotary(rope)
    assert plain == Rotary(tuple(inverse_frequencies(8).tolist()))
    others = [
        rotary(f"{rope} {flags}")
        for flags in (
            "--rotary-base 500000",
            "--rotary-percent 0.5",
            "--use-rope-scaling",
            "--rotary-seq-len-interpolation-factor 2",
            "--rotary-interleaved",
        )
    ]
    assert len({plain, *others}) == 6
    tables = [one.tables((range(2, 6),))[0] for one in (plain, *others)]
    assert [table.shape for table in tables] == [(4, 8), (4, 8), (4, 4), (4, 8), (4, 8), (4, 8)]
