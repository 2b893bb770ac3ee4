"""The flat buffers of parameters and gradients as a plan: where each parameter lies, which spans one optimizer sweep
treats alike, over which groups gradients are summed, and which part a replica owns."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_core.buffers.collectives import plan_gathers, plan_reductions
from parallel_core.buffers.layout import BucketRule, Span, aligned, overlaps, overlaps_in_order, plan_buffers
from parallel_core.buffers.stretch import Stretch
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


def replica(rank: int, size: int, instances: int = 1) -> dict[str, tuple[int, int]]:
    """Coordinates of replica `rank` of `size`, by kind of group, with its place in and across the `instances` of the
    distributed optimizer's state."""
    own = {"intra": (rank % (size // instances), size // instances), "inter": (rank // (size // instances), instances)}
    cut = {f"{part}-{kind}": place for part, place in own.items() for kind in ("dp-cp", "expert-dp")}
    return GROUPS | {"dp-cp": (rank, size), "expert-dp": (rank, size)} | cut


def places(*specs: ShardSpec) -> list[tuple[Place, str]]:
    """Places of float32 parameters that no group cuts."""
    return [(place(spec, {}), "float32") for spec in specs]


@given(parameters, rules)
def test_every_parameter_has_one_place(given_parameters, rule):
    """Each parameter has one place: in the buffer of its type and replicas, aligned, apart from the others, inside one
    bucket; the buckets cover the buffer."""
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
    """The segments that the optimizer sweeps cover the buffer; each parameter is in one of them, which has its weight
    decay, and neighbouring segments differ in it."""
    for plan in plan_buffers(given_parameters, rule=rule):
        segments = plan.segments(lambda spec: spec.is_decayed)
        assert [0, *(s.span.stop for s in segments)] == [*(s.span.start for s in segments), plan.size]
        for entry in plan.entries:
            (around,) = [s for s in segments if s.span.start <= entry.start and entry.stop <= s.span.stop]
            assert around.treatment == entry.spec.is_decayed
        assert all(a.treatment != b.treatment for a, b in pairwise(segments))


@given(parameters, replicas, st.integers(1, 3), st.none() | st.integers(1, 200))
def test_replicas_own_every_parameter_once(given_parameters, size, instances, bucket_size):
    """The replicas of each instance of the distributed optimizer own equal parts of each bucket, no element twice and
    none left out; without it a replica owns the whole buffer."""
    for plan in plan_buffers(given_parameters, rule=BucketRule.sharded(size, bucket_size)):
        ranks = [replica(rank, size * instances, instances) for rank in range(size * instances)]
        owned = [plan.owned_by(coordinates, sharded=True) for coordinates in ranks]
        for first in range(0, size * instances, size):
            spans = sorted(span for own in owned[first : first + size] for span in own)
            assert [0, *(span.stop for span in spans)] == [*(span.start for span in spans), plan.size]
            for bucket in plan.buckets:
                assert len({span.size for span in spans if overlaps([span], [bucket])}) == 1
            for entry in plan.entries:
                found = (pair for one in owned[first : first + size] for pair in plan.entries_in(one))
                own = sorted(run for other, run in found if other == entry)
                assert [own[0].start, *(run.stop for run in own)] == [*(run.start for run in own), entry.stop]
    assert all(plan.owned_by(GROUPS, sharded=False) == (plan.span,) for plan in plan_buffers(given_parameters))


@given(parameters, st.lists(st.integers(0, 3), min_size=50, max_size=50))
def test_a_bucket_never_mixes_keys(given_parameters, keys):
    """Parameters with different `keys` (such as cells of the model) never share a bucket."""
    for plan in plan_buffers(given_parameters, rule=BucketRule(size=None), keys=keys):
        for bucket in plan.buckets:
            assert len({keys[entry.index] for entry in plan.entries if overlaps([entry.span], [bucket])}) == 1


@given(parameters, st.sampled_from([(1, 1), (2, 1), (4, 1), (4, 2), (3, 3)]), st.booleans())
def test_each_gradient_is_summed_as_its_spec_says(given_parameters, sizes, sharded):
    """Each element that a rank owns is summed once over its replicas, once over the group of its partial sums and once
    over its copies, if it has such groups, and over nothing else; the sums over replicas come first."""
    size, instances = sizes
    plans = plan_buffers(given_parameters, rule=BucketRule.sharded(size // instances, 100))
    here = replica(1 % size, size, instances)
    reductions = plan_reductions(plans, here, sharded=sharded)
    of_replicas = ("dp-cp", "expert-dp", "intra-dp-cp", "inter-dp-cp", "intra-expert-dp", "inter-expert-dp")
    for i, plan in enumerate(plans):
        for entry, run in plan.entries_in(plan.owned_by(here, sharded=sharded)):
            own = (r for r in reductions if r.buffer == i)
            mine = [r.over for r in own if overlaps([run], [r.span]) == [run]]
            cut = ["intra-" + entry.spec.replicas, "inter-" + entry.spec.replicas]
            wanted = [*(cut if sharded else [entry.spec.replicas]), entry.spec.partial_over, entry.spec.shared_over]
            assert sorted(mine) == sorted(kind for kind in wanted if kind and here[kind][1] > 1)
    kinds = [reduction.over in of_replicas for reduction in reductions]
    assert kinds == sorted(kinds, reverse=True), "the replicas' sums come first"


@given(parameters, replicas)
def test_what_is_updated_is_gathered(given_parameters, size):
    """Each bucket is gathered once after an update with the distributed optimizer, and each rank contributes what it
    owns; without sharding nothing is gathered."""
    plans = plan_buffers(given_parameters, rule=BucketRule.sharded(size, 100))
    for rank in range(size):
        gathers = plan_gathers(plans, replica(rank, size), sharded=True)
        brought = [[g.own_part(rank, size) for g in gathers if g.buffer == i] for i in range(len(plans))]
        owned = [list(plan.owned_by(replica(rank, size), sharded=True)) for plan in plans]
        assert brought == (owned if size > 1 else [[]] * len(plans))
    assert plan_gathers(plans, replica(0, size), sharded=False) == []


def test_ranks_of_other_sums_own_the_same_spans():
    """A tied embedding on two stages with different parameters around it is alone in its bucket, so that both stages'
    replicas own, and sum over the embedding group, the same part of it."""
    tied, matrix = ShardSpec(shape=(40, 3), shared_over="embedding"), ShardSpec(shape=(31, 3))
    sums = []
    for model in ([tied, matrix, matrix], [matrix, tied]):
        plans = plan_buffers(places(*model), rule=BucketRule.sharded(2))
        (shared,) = [r for r in plan_reductions(plans, replica(1, 2), sharded=True) if r.over == "embedding"]
        (entry,) = [e for e in plans[0].entries if e.spec.shared_over]
        sums.append((shared.span.start - entry.start, shared.span.stop - entry.start))
    assert sums == [(64, 120)] * 2


arrays = st.lists(st.integers(1, 5), max_size=3).map(tuple)


@given(st.data(), arrays, st.integers(0, 2))
def test_a_stretch_is_boxes_of_the_global_array(data, shape, cut_axis):
    """`Stretch`, a run of elements of a rank's part of a parameter (cut along any axis, in one or two fused parts), is
    expressed as boxes that hold exactly these elements at their places in the whole array; the whole part is not
    copied."""
    cuts = (Cut(cut_axis, parts=data.draw(st.integers(1, 2))),) if cut_axis < len(shape) else ()
    whole = tuple(n * 4 if i == cut_axis else n for i, n in enumerate(shape))
    here = place(ShardSpec(shape=whole, cuts=cuts), {"tp": (data.draw(st.integers(0, 1)), 2)})
    start = data.draw(st.integers(0, here.size - 1))
    stretch = Stretch(here, start, data.draw(st.integers(start + 1, here.size)))
    values = np.arange(np.prod(whole, dtype=int), dtype=np.float32).reshape(whole) + 1
    vector = here.cut(values).reshape(-1)[stretch.start : stretch.stop]
    array = stretch.to_array(vector)
    assert here.size != vector.size or np.shares_memory(array, vector), "a needless copy"
    np.testing.assert_array_equal(stretch.to_vector(array), vector)
    found = np.zeros_like(values)
    stretch.place.put(array, found)
    np.testing.assert_array_equal(np.sort(found[found > 0]), np.sort(vector))
    np.testing.assert_array_equal(found[found > 0], values[found > 0])
    assert sum(box.size for box in stretch.place.boxes) == len(vector)
    ends = [tuple(a + n for a, n in zip(box.at, box.shape, strict=True)) for box in stretch.place.boxes]
    assert tuple(map(max, zip(*ends, strict=True))) == stretch.place.shape, "no wider than its boxes"


def test_treated_alike_lies_together():
    """A buffer's order: decayed parameters, then the others, in each half those with partial gradients last, else the
    model's order; so a treatment is one segment, and sums over replicas and over tp are one run each here."""
    matrix, vector = ShardSpec(shape=(4, 4)), ShardSpec(shape=(5,))
    model = [
        replace(vector, partial_over="tp"), matrix, vector,
        replace(matrix, weight_decay=False, partial_over="tp"), matrix,
    ]  # fmt: skip
    (plan,) = plan_buffers(places(*model))
    assert [entry.index for entry in plan.entries] == [1, 4, 2, 0, 3]
    segments = plan.segments(lambda spec: spec.is_decayed)
    assert [(*s.span, s.treatment) for s in segments] == [(0, 32, True), (32, 80, False)]
    replicas, partial = plan_reductions([plan], GROUPS)
    assert (replicas.span, replicas.over, partial.span, partial.over) == ((0, 80), "dp-cp", (48, 80), "tp")
    assert plan_reductions([plan], {"tp": (0, 1)}) == [], "nothing over groups of one"


def test_buckets_are_filled_in_reverse_order():
    """Buckets are filled from the model's last parameter on, as in Megatron: the parameter that reaches the size closes
    the bucket; a tied one is alone in its own."""
    tied = ShardSpec(shape=(16,), shared_over="embedding")
    model = places(tied, *[ShardSpec(shape=(16, 1))] * 4)
    (plan,) = plan_buffers(model, rule=BucketRule(size=20, isolates_shared=True))
    by_bucket = [[e.index for e in plan.entries if bucket.start <= e.start < bucket.stop] for bucket in plan.buckets]
    assert by_bucket == [[3, 4], [1, 2], [0]]
    assert [bucket.stop for bucket in plan.buckets] == [32, 64, 80]


def test_megatrons_padding():
    """Parameters start at multiples of 64 with the distributed optimizer, and a bucket's size is a multiple of 128 that
    the replicas divide."""
    (plan,) = plan_buffers(places(ShardSpec(shape=(65,)), ShardSpec(shape=(3,))), rule=BucketRule.sharded(3))
    assert [entry.start for entry in plan.entries] == [0, 128] and plan.size == 384
    assert plan.owned_by(replica(1, 3), sharded=True) == (Span(128, 256),)


def test_local_sizes_count():
    """A parameter takes as many elements of a buffer as its shard on this rank has, not its global size."""
    spec = ShardSpec(shape=(64, 3), cuts=(Cut(0),))
    (plan,) = plan_buffers([(place(spec, {"tp": (1, 4)}), "float32")])
    assert plan.size == aligned(48) == 48


def test_a_type_that_no_buffer_has_is_refused():
    """A trained parameter of int32 is an error that names the parameter and requires_grad=False as the fix."""
    with pytest.raises(ValueError, match=r"parameter ids: is of type int32.*requires_grad=False"):
        plan_buffers([(place(ShardSpec(name="ids", shape=(2,)), {}), "int32")])


class Counted(list):
    """A list that counts the elements that are read of it, by index or by iteration."""

    reads = 0

    def __getitem__(self, index):
        self.reads += 1
        return super().__getitem__(index)

    def __iter__(self):
        for item in super().__iter__():
            self.reads += 1
            yield item


def test_overlaps_read_each_span_a_few_times():
    """`overlaps_in_order` of two lists of n spans gives the intersections of `overlaps`, and reads in proportion to
    n."""
    count = 300
    spans = [Span(10 * n, 10 * n + 8) for n in range(count)]
    others = Counted(Span(10 * n + 5, 10 * n + 15) for n in range(count))
    found = [*overlaps_in_order(spans, others)]
    assert others.reads < 10 * count
    assert [span for _, span in found] == overlaps(spans, [*others])
    assert [number for number, _ in found] == sorted([*range(count), *range(1, count)])
