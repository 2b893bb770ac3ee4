"""The data of a report's page: curves, tables, several runs, missing parts, hostile text."""

import json
from pathlib import Path

import pytest

from parallel_core.report import Run, html, page_of
from parallel_core.report.document import as_json
from parallel_core.report.parts import Bars, Heat, Lines, Page
from parallel_core.report.run import name_apart
from tests.support.report import CURVES, HOSTILE, metrics, start, write_lines, write_run

ALL = ["overview", "learning", "speed", "experts", "timeline", "events", "flags", "configuration", "environment"]


def read(*folders: Path) -> Page:
    """The page of these run folders."""
    runs = [Run(folder) for folder in folders]
    for run in runs:
        run.refresh()
    name_apart(runs)
    return page_of(runs)


def lines_of(page: Page) -> dict[str, Lines]:
    """The page's line charts, by title."""
    return {plot.title: plot for section in page.sections for plot in section.plots if isinstance(plot, Lines)}


def cells(page: Page, caption: str) -> list[list[str]]:
    """The rows of the table with this caption."""
    tables = {table.caption: table for section in page.sections for table in section.tables}
    return tables[caption].rows


def test_every_curve_is_there(tmp_path):
    """Each figure of metrics.jsonl, known or not, is a curve over steps, samples and hours, with a sentence and a
    table; the predicted memory is a constant line."""
    page = read(write_run(tmp_path / "run"))
    assert [section.id for section in page.sections] == ALL
    curves = {tuple(series.y): series.x for plot in lines_of(page).values() for series in plot.series}
    for name, values in CURVES.items():
        x = curves[tuple(100 * value for value in values)] if name == "mfu" else curves[tuple(values)]
        assert x["step"] == [1, 2, 3, 4] and x["samples"] == [8, 16, 24, 32] and len(x["hours"]) == 4
    loss = lines_of(page)["Loss"]
    assert "run: from 5 at step 1 to 3.25 at step 4, smallest 3.25 at step 4, largest 5 at step 1" in loss.text
    assert loss.table.rows[1] == ["2", "4"] and loss.table.rows[-1] == ["largest", "5"]
    assert lines_of(page)["Validation loss"].series[0].x["step"] == [4]
    predicted = next(plot for title, plot in lines_of(page).items() if title.startswith("Memory")).series[1]
    assert predicted.is_constant and predicted.y == [4.0, 4.0] and predicted.x["step"] == [1, 4]


def test_experts_and_the_timeline(tmp_path):
    """Shares of the experts are shown by layer over steps and by expert, and the timeline has a rank's recorded spans
    beside the planned stage's."""
    page = read(write_run(tmp_path / "run"))
    over, newest, step = (plot for section in page.sections for plot in section.plots if not isinstance(plot, Lines))
    assert isinstance(over, Heat) and over.y == ["0", "2"] and over.z == [[1.5] * 4, [1.25] * 4]
    assert isinstance(newest, Heat) and newest.z == [[0.5, 1.0, 1.5, 1.0], [1.0] * 4]
    assert isinstance(step, Bars) and step.rows == ["rank 0", "planned stage 0"]
    assert step.kinds["forward"] == [
        ["rank 0", 0.0, 3000.0, "forward 0.0"],
        ["planned stage 0", 0.0, 3000.0, "forward 0.0"],
    ]
    assert "waiting" in step.kinds and "step" not in step.kinds and step.table.rows[0][2] == "7,000 ms"


def test_what_happened(tmp_path):
    """Tables: starts and ends, warnings, runs, flags and what became of them, a step beside its plan (time and memory),
    memory of rank 0."""
    page = read(write_run(tmp_path / "run"))
    assert [row[3:] for row in cells(page, "Starts and ends")] == [["start", "the beginning"], ["end", ""]]
    assert cells(page, "Warnings") == [["run", "2026-01-02 03:04:06", "2", "the disk is full"]]
    assert cells(page, "Runs")[0][:3] == ["run", "4 of 4", "3.25"]
    assert cells(page, "Flags, and what became of them") == [
        ["--lr", "0.001: mapped -> optimizer_config.learning_rate"]
    ]
    beside = "of step 2 beside the plan on CPU"
    assert cells(page, f"run: seconds {beside}")[::2] == [
        ["forward", "500 ms", "1,000 ms", "2"],
        ["total", "2,000 ms", "2,000 ms", "1"],
    ]
    assert cells(page, f"run: memory {beside}")[1:] == [
        ["activations", "1 MiB", "-", "-"],
        ["total", "2 MiB", "-", "-"],
    ]
    assert cells(page, "Memory of rank 0") == [["run", "1 MiB", "-", "-", "-", "4 MiB", "310 MiB"]]


def test_several_runs_stand_beside_each_other(tmp_path):
    """Two runs have a curve each, names that tell them apart, and a table of configuration in which the options that
    differ are marked."""
    other = {"training_config": {"training_iters": 5}, "model_config": {"moe_config": {"num_experts": 4}}}
    page = read(write_run(tmp_path / "a" / "run"), write_run(tmp_path / "b" / "run", config=other))
    assert page.runs == ["a/run", "b/run"]
    assert [series.run for series in lines_of(page)["Loss"].series] == [0, 1]
    (table,) = next(section.tables for section in page.sections if section.id == "configuration")
    assert [table.rows[number] for number in table.marked] == [["training_config.training_iters", "4", "5"]]
    assert len(table.rows) == 2 and table.columns == ["option", "a/run", "b/run"]


def test_a_run_with_figures_alone(tmp_path):
    """A folder with metrics.jsonl alone gives a page with the sections that it has figures for."""
    write_lines(tmp_path / "metrics.jsonl", [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}])
    page = read(tmp_path)
    assert [section.id for section in page.sections] == ["overview", "learning", "speed", "events"]
    assert list(lines_of(page)) == ["Loss"]


def test_runs_of_which_one_lacks_a_figure(tmp_path):
    """A figure that one run lacks has the other's curve alone, and a dash in the table."""
    write_lines(tmp_path / "dense" / "metrics.jsonl", [{"step": step, "loss": 1.0} for step in (2, 3)])
    page = read(write_run(tmp_path / "experts"), tmp_path / "dense")
    plots = lines_of(page)
    assert [series.run for series in plots["Gradient norm"].series] == [0]
    assert ["2", "4", "1"] in plots["Loss"].table.rows and ["2", "1.5", "-"] in plots["Gradient norm"].table.rows


def test_hostile_words_are_data(tmp_path):
    """HTML and scripts in flags, figures, messages and folder names appear in the page's data only, escaped, and the
    page fetches nothing."""
    folder = tmp_path / HOSTILE.replace("/", "")
    flag = {"flag": HOSTILE, "value": HOSTILE, "status": "ignored", "target": "", "reason": HOSTILE}
    write_run(
        folder, flags=[flag], config={HOSTILE: {"x": HOSTILE}}, environment={HOSTILE: HOSTILE}, resumed_from=HOSTILE
    )
    write_lines(folder / "metrics.jsonl", metrics(1, **{HOSTILE: 1.0}))
    write_lines(folder / "events.jsonl", [{"event": "warning", "step": HOSTILE, "message": HOSTILE}])
    page = read(folder)
    text = html(page, "LIBRARY")
    assert "<script>alert" not in text and "<img" not in text and "LIBRARY" in text
    data = text.partition('id="data">')[2].partition("</script>")[0]
    assert json.loads(data) == json.loads(as_json(page)) and HOSTILE in str(json.loads(data))
    assert text.count("http") == text.count("http-equiv"), "nothing is fetched"
    assert "y: plot.y.map(plain)" in text and "plain(span[0])" in text, "Plotly draws markup in what it is given"


@pytest.mark.parametrize(
    "line",
    [
        {"event": ["start"]},
        {"event": "start", "config": 3, "flags": 4, "environment": [], "memory_predicted": "x"},
        {"event": "start", "config": {"training_config": []}, "flags": [1, {"flag": None}]},
        {"event": "experts", "tokens": {"0": [0, 0], "1": "x", "2": [None]}},
        {"event": "warning"},
        {
            "event": "comparison",
            "seconds": {"parts": {"forward": [1], "backward": "x", "other": [None, "y"]}},
            "memory": 3,
        },
    ],
)
def test_events_of_another_form(line, tmp_path):
    """A page is made though a line of events.jsonl has another form than ours."""
    write_lines(tmp_path / "events.jsonl", [start(), line])
    write_lines(tmp_path / "metrics.jsonl", metrics())
    assert as_json(read(tmp_path))


def test_a_trace_of_another_program_is_said(tmp_path):
    """A trace.json of another form leaves out the timeline and is named among the warnings."""
    write_run(tmp_path / "run")
    (tmp_path / "run" / "trace.json").write_text("[1]")
    page = read(tmp_path / "run")
    assert "timeline" not in [section.id for section in page.sections]
    assert "is no trace of this program" in cells(page, "Warnings")[-1][-1]
