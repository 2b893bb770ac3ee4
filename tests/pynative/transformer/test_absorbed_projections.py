"""Latent attention of a token behind cached ones, computed from the cached latents without projecting them to keys and
values."""

import mindspore
import numpy as np
import pytest

from pynative import kernels
from pynative.kernels.block import AttentionRule
from pynative.transformer.absorbed_projections import AbsorbedProjections
from tests.support.kernel_stacks import STACKS, selected

CACHED, TEXTS, HEADS, PLAIN, ROTARY, VALUE, LATENT = 7, 3, 4, 6, 2, 5, 8


@pytest.mark.parametrize("stack", STACKS)
def test_scores_and_sums_are_those_of_projected_keys_and_values(stack):
    """In every stack of operators it equals attention over projected keys and values in float64, for texts of different
    lengths."""
    draw = np.random.default_rng(0).standard_normal
    query, rotary_keys = draw((TEXTS, HEADS, PLAIN + ROTARY)), draw((CACHED, TEXTS, ROTARY))
    latents, weight = draw((CACHED, TEXTS, LATENT)), draw((HEADS, PLAIN + VALUE, LATENT))
    ages = np.arange(CACHED, dtype=np.int32)[::-1, None] - np.array([0, 2, 5], np.int32)
    rows = np.einsum("hoc,sbc->sbho", weight, latents)
    keys = np.concatenate((rows[..., :PLAIN], np.repeat(rotary_keys[:, :, None], HEADS, 2)), -1)
    scores = np.einsum("bhd,sbhd->bhs", query, keys) * 0.3
    scores[np.repeat((ages < 0).T[:, None], HEADS, 1)] = -np.inf
    likely = np.exp(scores - scores.max(-1, keepdims=True))
    likely /= likely.sum(-1, keepdims=True)
    expected = np.einsum("bhs,sbhe->bhe", likely, rows[..., PLAIN:]).reshape(1, TEXTS, -1)

    def given(x: np.ndarray) -> mindspore.Tensor:
        return mindspore.from_numpy(np.ascontiguousarray(x, np.float32))

    with selected(stack):
        absorbed = AbsorbedProjections(given(weight.reshape(-1, LATENT)), HEADS, VALUE, (LATENT, ROTARY))
        kept = given(np.concatenate((latents, rotary_keys), -1)[:, :, None])
        attended = kernels.cached_attention(
            absorbed.query(given(query[None])), kept, kept, ages, AttentionRule(scale=0.3)
        )
        np.testing.assert_allclose(absorbed.values(attended).asnumpy(), expected, atol=1e-5)
