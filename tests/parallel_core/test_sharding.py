"""Cuts of parameters, and initial values that don't depend on them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_core.initial_values import Constant, Normal, standard_normal
from parallel_core.sharding import ShardSpec


def cut_of(axis: int, parts: int, unit: int, other: int, size: int) -> tuple[ShardSpec, int]:
    """A spec whose cut axis divides into `parts` over `size` ranks, and that size."""
    shape = (unit * parts * size, other) if axis == 0 else (other, unit * parts * size)
    return ShardSpec(name="w", shape=shape, axis=axis, parts=parts), size


cuts = st.builds(
    cut_of,
    st.sampled_from([0, 1]),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(1, 5),
    st.sampled_from([1, 2, 4]),
)


@given(cuts)
def test_merge_undoes_cut(cut):
    """Any axis, any number of fused parts, any group size."""
    spec, size = cut
    whole = np.arange(np.prod(spec.shape)).reshape(spec.shape)
    shards = [spec.cut(whole, rank, size) for rank in range(size)]
    assert all(shard.shape == spec.local_shape(size) for shard in shards)
    assert (spec.merge(shards) == whole).all()


def test_swiglu_halves_are_cut_on_their_own():
    """Rank r holds [gate_r; up_r], not a contiguous block."""
    spec = ShardSpec(shape=(8, 1), axis=0, parts=2)
    assert spec.cut(np.arange(8).reshape(8, 1), 1, 2).ravel().tolist() == [2, 3, 6, 7]


@given(cuts)
def test_initial_values_do_not_depend_on_the_layout(cut):
    """The shards of any group size are pieces of the same array (DESIGN, decision 3)."""
    spec, size = cut
    whole = Normal(0.02).shard(1234, spec, 0, 1)
    for rank in range(size):
        np.testing.assert_array_equal(Normal(0.02).shard(1234, spec, rank, size), spec.cut(whole, rank, size))


def test_normal_values_are_normal_and_differ_by_seed_and_name():
    """Moments of a million values, and no correlation between streams."""
    values = standard_normal(1, "a", 0, 1_000_000)
    assert abs(values.mean()) < 4e-3 and abs(values.std() - 1) < 3e-3 and abs((values**4).mean() - 3) < 0.03
    for other in (standard_normal(2, "a", 0, 1000), standard_normal(1, "b", 0, 1000)):
        assert abs(np.corrcoef(values[:1000], other)[0, 1]) < 0.15
    np.testing.assert_array_equal(standard_normal(1, "a", 300_001, 300_010), values[300_001:300_010])


def test_constant():
    """Norm weights and biases."""
    spec = ShardSpec(name="n", shape=(3,))
    assert Constant(1.0).shard(0, spec, 1, 2).tolist() == [1.0, 1.0, 1.0]


def test_sizes_that_do_not_divide_are_refused():
    """The message names the parameter and the flag."""
    with pytest.raises(ValueError, match=r"w: 6 entries.*--tensor-model-parallel-size 4"):
        ShardSpec(name="w", shape=(6, 2), axis=0).local_shape(4)
    with pytest.raises(ValueError, match="expected shape"):
        ShardSpec(name="w", shape=(6, 2), axis=0).cut(np.zeros((5, 2)), 0, 2)
