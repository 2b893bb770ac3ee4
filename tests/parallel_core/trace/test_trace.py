"""A recorded trace: sums of a step, the Chrome JSON file, and planned spans beside it."""

import pytest

from parallel_core.schedules import GENERATORS
from parallel_core.schedules.actions import Forward
from parallel_core.schedules.simulate import Times, simulate
from parallel_core.trace import (
    Kind,
    MeasuredTimes,
    Span,
    chrome_json,
    planned_bubble_share,
    planned_json,
    planned_spans,
    read_chrome,
    read_planned,
    summary,
)
from tests.support.trace_file import slices

STEP = [
    Span(1, Kind.STEP, "step 3", 10.0, 10.0, 3),
    Span(1, Kind.DATA, "data", 10.0, 1.0, 3),
    Span(1, Kind.WAITING, "recv", 11.0, 2.0, 3, "pp"),
    Span(1, Kind.MOVING, "recv", 13.0, 0.5, 3, "pp"),
    Span(1, Kind.FORWARD, "F0", 13.5, 3.0, 3),
    Span(1, Kind.WAITING, "all_reduce", 14.0, 1.0, 3, "tp"),
    Span(1, Kind.MOVING, "all_reduce", 15.0, 0.5, 3, "tp"),
    Span(1, Kind.COLLECTIVE, "reduce_scatter", 14.0, 5.0, 3, "dp"),
    Span(1, Kind.OPTIMIZER, "optimizer", 16.5, 3.0, 3),
]


def test_sums_of_a_step():
    """`summary` counts a wait inside a forward as messages, a wait for another stage as bubble, a message under way as
    nothing, and the rest as unknown."""
    (found,) = summary(STEP)
    assert (found.rank, found.step, found.total) == (1, 3, 10.0)
    assert (found.data, found.bubble, found.messages, found.computing) == pytest.approx((1.0, 2.0, 2.0, 4.5))
    assert found.unknown == pytest.approx(0.5) and found.bubble_share == pytest.approx(2 / 3)


def test_the_file_has_every_span(tmp_path):
    """A trace written as Chrome JSON and read again has every span, times counted from the first."""
    path = tmp_path / "trace.json"
    path.write_text(chrome_json(STEP, plan={"bubble": 0.1}))
    read = read_chrome(path)
    assert summary(read)[0].computing == pytest.approx(4.5)
    assert sorted(read) == sorted(span._replace(start=span.start - 10.0) for span in STEP)


def test_perfetto_takes_every_span(tmp_path):
    """Spans nest in each row of the file, as Perfetto needs it: messages under way at once have rows of their own, and
    rounding to microseconds makes no overlap."""
    third = 1 / 3
    path = tmp_path / "trace.json"
    spans = [
        Span(0, Kind.FORWARD, "forward 0.0", third, 4e-7 + third, 1),
        Span(0, Kind.WAITING, "recv", 2 * third - 1e-3, 1e-3, 1, "pp"),
        Span(0, Kind.MOVING, "recv", 2 * third, 4e-7, 1, "pp"),
        *(Span(0, Kind.COLLECTIVE, f"all_reduce {n}", n * third, 0.5, 1, "dp") for n in range(4)),
    ]
    path.write_text(chrome_json(spans))
    rows = slices(path)
    assert {row: len(own) for row, own in rows.items()} == {(0, 0): 3, (0, 1): 2, (0, 2): 2}
    assert {span.name for span in read_chrome(path)} == {span.name for span in spans}


def test_the_planned_times_are_each_stages_own():
    """`MeasuredTimes` gives for each chunk the mean over a stage's ranks, in whole microseconds; a stage that was not
    recorded gets the mean of the others."""
    spans = [
        Span(rank, Kind.FORWARD, f"forward {micro_batch}.{chunk}", 0.0, (1 + rank + 4 * chunk + micro_batch) * 1e-3)
        for rank in (0, 1, 2)
        for chunk in (0, 1)
        for micro_batch in (0, 2)
    ]
    times = MeasuredTimes.of_spans(spans, lambda rank: rank // 2)
    of = [[times.of(Forward(0, chunk), stage, 2, False) for chunk in (0, 1)] for stage in range(3)]
    assert of == [[2500, 6500], [4000, 8000], [5000, 5000]]


def test_another_file_is_refused(tmp_path):
    """A file that is no trace of ours is an error with its name."""
    path = tmp_path / "trace.json"
    for text in ("[1]", '{"traceEvents": [{"ph": "X"}]}', "{"):
        path.write_text(text)
        with pytest.raises(ValueError, match=r"trace\.json"):
            read_chrome(path)


def test_numbers_that_no_span_has_are_refused(tmp_path):
    """Ranks and times that are infinite, too large or no numbers are an error with the file's name."""
    path = tmp_path / "trace.json"
    event = '{"ph": "X", "pid": 0, "cat": "forward", "name": "f", "dur": 1, "args": {"step": 1}, "ts": %s}'
    for number in ("9" * 400, "Infinity", "NaN", '"x"'):
        path.write_text(f'{{"traceEvents": [{event % number}]}}')
        with pytest.raises(ValueError, match=r"trace\.json: is no trace"):
            read_chrome(path)
    for row in (
        '[Infinity, "forward", "f", 0, 1]',
        f'[0, "forward", "f", {"9" * 400}, 1]',
        '[0, "f", "f", 0, 1]',
        "[1]",
    ):
        path.write_text(f'{{"planned": {{"spans": [{row}]}}}}')
        with pytest.raises(ValueError, match=r"trace\.json: is no trace"):
            read_planned(path)


def test_the_planned_step_lies_beside_the_measured_one(tmp_path):
    """Planned spans of each stage are stored in the trace's file and read again; a file without them gives none."""
    timeline = simulate(GENERATORS["1f1b"](2, 2, 1, None), Times(2_000_000, 4_000_000))
    planned = planned_spans(timeline)
    path = tmp_path / "trace.json"
    path.write_text(chrome_json(STEP, planned={"spans": planned_json(planned)}))
    assert read_planned(path) == planned
    first = [(span.kind, span.name, span.start, span.seconds) for span in planned if span.rank == 0][:3]
    assert first == [
        (Kind.FORWARD, "forward 0.0", 0.0, 2.0),
        (Kind.FORWARD, "forward 1.0", 2.0, 2.0),
        (Kind.BACKWARD, "backward 0.0", 8.0, 4.0),
    ]
    assert planned_bubble_share(timeline) == pytest.approx(1 / 3)
    path.write_text(chrome_json(STEP))
    assert read_planned(path) == []
