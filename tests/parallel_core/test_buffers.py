"""Flat buffers as a plan: where everything lies, what is swept, summed and owned."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_core.buffers import BucketRule, aligned, plan_buffers, plan_reductions
from parallel_core.sharding import Cut, Place, ShardSpec, place

specs = st.builds(
    ShardSpec,
    shape=st.lists(st.integers(1, 9), max_size=2).map(tuple),
    replicas=st.sampled_from(["dp-cp", "expert-dp"]),
    partial_over=st.sampled_from([None, "tp"]),
    shared_over=st.sampled_from([None, "embedding"]),
    weight_decay=st.sampled_from([None, False]),
)
parameters = st.lists(st.tuples(specs.map(lambda spec: place(spec, {})), st.sampled_from(["float32", "bfloat16"])))
replicas = st.integers(1, 5)
rules = st.builds(BucketRule, size=st.none() | st.integers(1, 200), isolates_shared=st.booleans()) | st.builds(
    BucketRule.sharded, replicas, st.none() | st.integers(1, 200)
)
GROUPS = {"dp-cp": (0, 2), "expert-dp": (0, 2), "tp": (0, 2), "embedding": (0, 2)}


def places(*specs: ShardSpec) -> list[tuple[Place, str]]:
    """Whole parameters of float32."""
    return [(place(spec, {}), "float32") for spec in specs]


@given(parameters, rules)
def test_every_parameter_has_one_place(given_parameters, rule):
    """In a buffer of its type and replicas, aligned, disjoint, inside one bucket; buckets cover the buffer."""
    plans = plan_buffers(given_parameters, rule=rule)
    indices = [entry.index for plan in plans for entry in plan.entries]
    assert sorted(indices) == list(range(len(given_parameters)))
    assert len({(plan.parameter_type, plan.replicas) for plan in plans}) == len(plans)
    for plan in plans:
        end = 0
        for entry in plan.entries:
            part, dtype = given_parameters[entry.index]
            assert (part, dtype, part.spec.replicas) == (entry.place, plan.parameter_type, plan.replicas)
            assert entry.start >= end and entry.start % rule.entry_alignment == 0
            assert any(bucket.start <= entry.start and entry.stop <= bucket.stop for bucket in plan.buckets)
            end = entry.stop
        assert [0, *(bucket.stop for bucket in plan.buckets)] == [*(b.start for b in plan.buckets), plan.size]
        assert all((bucket.stop - bucket.start) % rule.bucket_alignment == 0 for bucket in plan.buckets)


@given(parameters, rules)
def test_segments_cover_the_buffer(given_parameters, rule):
    """Each parameter is swept once, with its own weight decay, and neighbouring segments differ."""
    for plan in plan_buffers(given_parameters, rule=rule):
        assert [0, *(s.stop for s in plan.segments)] == [*(s.start for s in plan.segments), plan.size]
        for entry in plan.entries:
            (around,) = [s for s in plan.segments if s.start <= entry.start and entry.stop <= s.stop]
            assert around.weight_decay_multiplier == float(entry.spec.is_decayed)
        multipliers = [segment.weight_decay_multiplier for segment in plan.segments]
        assert all(a != b for a, b in pairwise(multipliers))


@given(parameters, replicas, st.none() | st.integers(1, 200))
def test_shards_of_replicas_cover_every_parameter_once(given_parameters, size, bucket_size):
    """The distributed optimizer's ranges: equal parts of each bucket, none twice, none left out."""
    for plan in plan_buffers(given_parameters, rule=BucketRule.sharded(size, bucket_size)):
        owned = [0] * plan.size
        for rank in range(size):
            assert len({part.stop - part.start for part in plan.shard(rank, size)}) <= len(plan.buckets)
            for part in plan.shard(rank, size):
                for i in range(part.start, part.stop):
                    owned[i] += 1
        assert set(owned) <= {1}
        spans = [pair for rank in range(size) for pair in plan.sharded_entries(rank, size)]
        for entry in plan.entries:
            own = sorted(span for found, span in spans if found == entry)
            assert [own[0].start, *(s.stop for s in own)] == [*(s.start for s in own), entry.stop]


@given(parameters, rules, st.booleans())
def test_each_gradient_is_summed_as_its_spec_says(given_parameters, rule, sharded):
    """Over its replicas once, over the group of its partial sums once, over its copies once, and over nothing else."""
    plans = plan_buffers(given_parameters, rule=rule)
    reductions = plan_reductions(plans, GROUPS, sharded=sharded)
    for i, plan in enumerate(plans):
        for entry in plan.entries:
            own = (r for r in reductions if r.buffer == i)
            mine = [r.over for r in own if r.span.start <= entry.start and entry.stop <= r.span.stop]
            wanted = {entry.spec.replicas, entry.spec.partial_over, entry.spec.shared_over} - {None}
            assert sorted(mine) == sorted(wanted)
    last = reductions[-1] if reductions else None
    assert not sharded or last is None or last.operation == "reduce_scatter", "a sum of parts would follow"


def test_treated_alike_lies_together():
    """Decayed first, partial gradients at the end of each half; one run is summed, in the model's order."""
    matrix, vector = ShardSpec(shape=(4, 4)), ShardSpec(shape=(5,))
    model = [
        replace(vector, partial_over="tp"), matrix, vector,
        replace(matrix, weight_decay=False, partial_over="tp"), matrix,
    ]  # fmt: skip
    (plan,) = plan_buffers(places(*model))
    assert [entry.index for entry in plan.entries] == [1, 4, 2, 0, 3]
    assert [(s.start, s.stop, s.weight_decay_multiplier) for s in plan.segments] == [(0, 32, 1.0), (32, 80, 0.0)]
    replicas, partial = plan_reductions([plan], GROUPS)
    assert (replicas.span, replicas.over, partial.span, partial.over) == ((0, 80), "dp-cp", (48, 80), "tp")
    assert plan_reductions([plan], {"tp": (0, 1)}) == [], "nothing over groups of one"


def test_buckets_are_filled_in_reverse_order():
    """Megatron's rule: the parameter that reaches the size closes the bucket; a tied one is alone in its own."""
    tied = ShardSpec(shape=(16,), shared_over="embedding")
    model = places(tied, *[ShardSpec(shape=(16, 1))] * 4)
    (plan,) = plan_buffers(model, rule=BucketRule(size=20, isolates_shared=True))
    by_bucket = [[e.index for e in plan.entries if bucket.start <= e.start < bucket.stop] for bucket in plan.buckets]
    assert by_bucket == [[3, 4], [1, 2], [0]]
    assert [bucket.stop for bucket in plan.buckets] == [32, 64, 80]


def test_megatrons_padding():
    """Parameters at multiples of 64, buckets of a multiple of 128 that the replicas divide."""
    (plan,) = plan_buffers(places(ShardSpec(shape=(65,)), ShardSpec(shape=(3,))), rule=BucketRule.sharded(3))
    assert [entry.start for entry in plan.entries] == [0, 128] and plan.size == 384
    assert plan.shard(1, 3) == [(128, 256)]


def test_local_sizes_count():
    """A parameter takes the room of its shard."""
    spec = ShardSpec(shape=(64, 3), cuts=(Cut(0),))
    (plan,) = plan_buffers([(place(spec, {"tp": (1, 4)}), "float32")])
    assert plan.size == aligned(48) == 48


def test_a_type_that_no_buffer_has_is_refused():
    with pytest.raises(ValueError, match=r"parameter ids: is of type int32.*requires_grad=False"):
        plan_buffers([(place(ShardSpec(name="ids", shape=(2,)), {}), "int32")])
