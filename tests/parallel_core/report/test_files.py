"""A report's reading of metrics.jsonl and events.jsonl while they grow, are cut, replaced or broken; and curves reduced
to few points."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from parallel_core.report import Run, page_of
from parallel_core.report.document import as_json
from parallel_core.report.run import name_apart
from parallel_core.report.thin import BINS, means, plain, thinned
from tests.support.report import metrics, start, write_lines


def test_what_is_added_is_read_once_it_is_whole(tmp_path):
    """`Run.refresh` reads only what was added, a half-written line when it is whole, and returns whether there was
    anything new."""
    path = tmp_path / "metrics.jsonl"
    run = Run(tmp_path)
    assert not run.refresh() and run.is_empty
    write_lines(path, metrics(2))
    with path.open("a") as file:
        file.write('{"step": 3, "lo')
    assert run.refresh() and run.figures.of("step").tolist() == [1, 2] and not run.refresh()
    with path.open("a") as file:
        file.write('ss": 7.5}\n')
    assert run.refresh() and run.figures.of("loss").tolist() == [5.0, 4.0, 7.5]
    assert np.isnan(run.figures.of("grad_norm")[2]) and run.figures.unreadable == 0


def test_a_file_that_was_cut_or_replaced_is_read_anew(tmp_path):
    """A metrics file that was replaced or emptied, as by a run that goes on from an earlier step, is read from its
    beginning."""
    path = tmp_path / "metrics.jsonl"
    write_lines(path, metrics(4))
    run = Run(tmp_path)
    run.refresh()
    path.unlink()
    write_lines(path, metrics(3))
    assert run.refresh() and run.figures.of("step").tolist() == [1, 2, 3]
    path.write_text("")
    assert run.refresh() and not run.figures.names()


def test_lines_that_are_none_are_counted(tmp_path):
    """Unreadable lines are left out and counted; of two lines of one step the later counts; NaN and infinity are gaps,
    and the page says both."""
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(
        b'{"step": 1, "loss": 5.0}\n\xff\xfe\n[1]\n{"loss": 2.0}\n{"step": NaN}\n{"step": "2"}\n'
        b'{"step": 3, "loss": NaN, "x/0": 1, "x": {"0": 2}}\n{"step": 2, "loss": Infinity, "deep": '
        + b"[" * 100000
        + b'\n{"step": 2, "loss": 4.0, "grad_norm": 1'
        + b"0" * 400
        + b'}\n\n{"step": 1, "loss": 6.0}\n'
    )
    run = Run(tmp_path)
    run.refresh()
    assert run.figures.of("step").tolist() == [1, 2, 3]
    assert plain(run.figures.of("loss")) == [6.0, 4.0, None] and plain(run.figures.of("grad_norm")) == [None] * 3
    assert run.figures.unreadable == 6
    page = page_of([run])
    warnings = [row[-1] for table in page.sections[-1].tables for row in table.rows]
    assert warnings == [
        "metrics.jsonl: 6 lines cannot be read and are left out",
        "the loss of 1 steps is no number: 3",
    ]
    assert "NaN" not in as_json(page) and "Infinity" not in as_json(page)


def test_events_of_another_run_in_the_folder_are_left_out(tmp_path):
    """Events of another run id are left out; a second start of the same run is kept."""
    write_lines(tmp_path / "events.jsonl", [start(run_id="x"), {"event": "warning"}, start(), start(step=5)])
    run = Run(tmp_path)
    run.refresh()
    assert [event["step"] for event in run.events["start"]] == [1, 5] and "warning" not in run.events


@pytest.mark.parametrize("count", [0, 1, 2 * BINS, 2 * BINS + 1, 100_003])
def test_a_thinned_curve_keeps_its_extremes(count):
    """`thinned` gives ascending indices, at most two for each bin and both ends, with each bin's smallest and largest
    value; a short curve stays whole."""
    values = np.random.default_rng(count).normal(size=count)
    kept = thinned(values)
    assert np.all(np.diff(kept) > 0) and len(kept) <= 2 * BINS + 2
    if count > 2 * BINS:
        edges = np.linspace(0, count, BINS + 1).astype(int)
        for first, stop in pairwise(edges):
            own = values[kept[(kept >= first) & (kept < stop)]]
            assert own.min() == values[first:stop].min() and own.max() == values[first:stop].max()
    else:
        assert len(kept) == count


def test_gaps_stay_gaps():
    """A bin without any finite value is a gap in `thinned` and `means`; a single NaN or infinity hides no other
    value."""
    values = np.arange(100_000.0)
    values[40_000:50_000] = np.nan
    values[77] = np.inf
    thin = values[thinned(values)]
    assert np.isnan(thin).any() and np.nanmax(thin) == 99_999 and not np.isposinf(thin).any()
    assert means(np.array([[1.0, 3.0, np.nan, np.nan]]), 2).tolist()[0][0] == 2.0
    assert np.isnan(means(np.array([[1.0, 3.0, np.nan, np.nan]]), 2)[0, 1])


@pytest.mark.parametrize(
    ("folders", "names"),
    [
        (["/tmp/a/x", "/tmp/a/y"], ["x", "y"]),
        (["/tmp/a/x", "/tmp/b/x"], ["a/x", "b/x"]),
        (["/x", "/tmp/x"], ["/x", "tmp/x"]),
        (["/tmp/x", "/tmp/x"], ["/tmp/x", "/tmp/x"]),
    ],
)
def test_names_of_runs(folders, names):
    """A run is named by as few last parts of its folder's path as tell it apart; by the whole path beside a run of the
    same folder."""
    runs = [Run(Path(folder)) for folder in folders]
    name_apart(runs)
    assert [run.name for run in runs] == names
