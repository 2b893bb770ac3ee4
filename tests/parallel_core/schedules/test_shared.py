"""`simulate_shared`, the timeline of stages that share processor cores: by hand, and against `simulate`."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from parallel_core.schedules import GENERATORS, dualpipe_v, one_f_one_b
from parallel_core.schedules.actions import Backward, Forward, Placement
from parallel_core.schedules.shared import simulate_shared
from parallel_core.schedules.simulate import TimedAction, Times, simulate


@dataclass(frozen=True)
class Shared:
    """`count` cores that stages of one rank share; after a wait a stage loses `share` of its time, at most `most`."""

    count: int
    share: float = 0.0
    most: float = 0.0

    def pace(self, stages):
        return min(1.0, self.count / stages)

    def waking(self, idle):
        return min(self.share * idle, self.most)


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb-h1", "interleaved"])
def test_as_many_cores_as_stages_change_nothing(name):
    """The spans with a core for each stage are those of `simulate`, with transfers and virtual stages."""
    chunks = 2 if name == "interleaved" else 1
    entries, placement, times = GENERATORS[name](4, 8, chunks), Placement(4, chunks), Times(3, 5, 2, transfer=1)
    alone, shared = simulate(entries, times, placement), simulate_shared(entries, times, placement, Shared(4))
    for own, other in zip(alone.spans, shared.spans, strict=True):
        assert [span.action for span in own] == [span.action for span in other]
        for name in ("start", "stop"):
            assert [float(getattr(span, name)) for span in own] == pytest.approx([getattr(s, name) for s in other])


def test_pairs_are_one_entry_here_too():
    """DualPipeV with pairs that save time ends when `simulate` says."""
    entries, placement = dualpipe_v(2, 6), Placement(2, 2, folded=True)
    times = Times(3, 5, 2, saved_by_pairs=1)
    alone = simulate(entries, times, placement)
    assert simulate_shared(entries, times, placement, Shared(2)).length == pytest.approx(float(alone.length))


def test_one_core_is_never_idle():
    """A step on one core takes the work of all stages, whether they compute in turn or at once."""
    for name in ("gpipe", "1f1b", "zb-h1"):
        entries = GENERATORS[name](4, 8)
        alone = simulate(entries, Times(3, 5, 2))
        shared = simulate_shared(entries, Times(3, 5, 2), Placement(4), Shared(1))
        assert shared.length == pytest.approx(float(sum(alone.work)))


def test_a_shared_timeline_by_hand():
    """Two stages on one core: two forwards at once each take twice as long, and a computation that is alone again has
    full speed."""
    timeline = simulate_shared(one_f_one_b(2, 2), Times(1, 2), Placement(2), Shared(1))
    assert timeline.spans[0][:2] == [TimedAction(Forward(0), 0.0, 1.0), TimedAction(Forward(1), 1.0, 3.0)]
    assert timeline.spans[1][:2] == [TimedAction(Forward(0), 1.0, 3.0), TimedAction(Backward(0), 3.0, 5.0)]
    assert timeline.length == pytest.approx(12)


def test_a_stage_that_has_waited_is_slow_at_first():
    """The second stage waits 1 for its first forward and loses a half; the first one waits 2.5, and loses the most,
    0.75, in the backward behind that; entries that follow others at once lose nothing."""
    times, placement = Times(1, 1), Placement(2)
    timeline = simulate_shared(one_f_one_b(2, 1), times, placement, Shared(2, share=0.5, most=0.75))
    assert timeline.spans[1] == [TimedAction(Forward(0), 1.0, 2.5), TimedAction(Backward(0), 2.5, 3.5)]
    assert timeline.spans[0] == [TimedAction(Forward(0), 0.0, 1.0), TimedAction(Backward(0), 3.5, 5.25)]


def test_a_stage_without_work_loses_nothing():
    """A middle stage that computes nothing takes no time although it has waited, and the timeline ends."""
    times = Times(0.1, 0.2, shares=[[1, 0, 1]])
    timeline = simulate_shared(one_f_one_b(3, 6), times, Placement(3), Shared(3, share=0.3, most=0.7))
    assert all(span.start == span.stop for span in timeline.spans[1])
    assert timeline.length > simulate(one_f_one_b(3, 6), times, Placement(3)).length


def test_stages_that_wait_for_each_other_have_no_timeline():
    """Stages that wait for each other are refused, as by `simulate`."""
    entries = [[Backward(0), Forward(0)], [Forward(0), Backward(0)]]
    with pytest.raises(AssertionError, match="wait for each other"):
        simulate_shared(entries, Times(), Placement(2), Shared(2))
