"""Attention with a key/value cache: both implementations, against attention over the whole text."""

import mindspore as ms
import numpy as np
import pytest

from parallel_core.attention.score_form import ScoreForm, alibi_slopes
from pynative import kernels
from pynative.kernels import host, ops
from pynative.kernels.block import AttentionRule
from pynative.kernels.host.attention import attention
from pynative.key_value_cache import Cache

FORMS = {
    "plain": ScoreForm(),
    "window": ScoreForm(window=3),
    "capped": ScoreForm(soft_cap=2.0),
    "alibi": ScoreForm(slopes=alibi_slopes(6)),
    "all": ScoreForm(window=4, soft_cap=2.0, slopes=alibi_slopes(6)),
}
LENGTHS = (5, 2, 7)
"""Lengths of the three texts when the cache begins; 6 more tokens of each follow."""


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@pytest.mark.parametrize("table", [host.OPERATORS, ops.OPERATORS], ids=["host", "ops"])
def test_the_last_query_sees_what_it_sees_in_the_whole_text(table, form, monkeypatch):
    """`cached_attention` of the newest token equals the last row of attention over the whole text, for texts of
    different lengths and grouped heads; a window's cache keeps its own keys alone."""
    for name in ("write_slots", "cached_attention"):
        monkeypatch.setattr(kernels, name, table[name])
    rng, total = np.random.default_rng(0), max(LENGTHS) + 6
    q, k, v = (rng.standard_normal((total, 3, n, d)).astype(np.float32) for n, d in ((4, 8), (2, 8), (2, 6)))
    cache = Cache(total)
    for step in range(7):
        lengths = np.array(LENGTHS) + step
        cache.begin(lengths)
        places, texts = cache.positions, np.arange(3)
        keys, values = cache.keep(1, form, *(ms.from_numpy(np.ascontiguousarray(x[places, texts])) for x in (k, v)))
        if not step:
            continue
        assert len(keys.asnumpy()) <= (total if form.window is None else form.window + 1)
        query = ms.from_numpy(np.ascontiguousarray(q[places, texts]))
        rule = AttentionRule(scale=0.3, head_offset=1, form=form)
        out = kernels.cached_attention(query, keys, values, cache.ages(1), rule)
        for text, length in enumerate(lengths):
            whole = (ms.from_numpy(np.ascontiguousarray(x[:length, text : text + 1])) for x in (q, k, v))
            expected = attention(*whole, rule).asnumpy()[-1, 0]
            np.testing.assert_allclose(out.asnumpy()[0, text], expected, atol=2e-5)
