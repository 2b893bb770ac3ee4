"""Frequencies and angles of rotary positions."""

import numpy as np

from parallel_core.config.families import RopeScalingConfig
from parallel_core.rope_scaling import llama3
from parallel_core.rotary import Rotary, inverse_frequencies
from tests.support.engine import TINY, config_of


def test_llama3_stretches_long_wavelengths_only():
    """Against the definition by wavelengths, band by band."""
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


def rotary(flags: str) -> Rotary | None:
    """That of a configuration whose heads have 8 channels."""
    return Rotary.of(config_of(f"{TINY} {flags}", 1).model_config)


def test_a_model_without_rotary_positions_has_none():
    assert rotary("") is None and rotary("--position-embedding-type none") is None


def test_every_setting_changes_the_angles():
    """Base, share of the head, stretching, interpolation and pairing of a configuration arrive."""
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
