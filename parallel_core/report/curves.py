"""Curves over steps: one plot of each figure that is drawn, with a curve for each run that has it."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from parallel_core.numerics.dtypes import Array
from parallel_core.report.parts import ABSENT, Lines, Section, Series, Table, figure
from parallel_core.report.run import Run
from parallel_core.report.thin import plain, thinned

ROWS = 9
"""The most rows for steps of the table under a plot."""


class Curve(NamedTuple):
    """A column of `metrics.jsonl` that is plotted, multiplied by `scale`. is_of_some_steps: whether steps without the
    figure are left out instead of being gaps."""

    column: str
    title: str
    unit: str = ""
    scale: float = 1.0
    is_of_some_steps: bool = False
    """Whether only some steps have the figure, as evaluations: other steps are left out then, instead of being gaps."""


LEARNING = (
    Curve("loss", "Loss"),
    Curve("validation_loss", "Validation loss", is_of_some_steps=True),
    Curve("grad_norm", "Gradient norm"),
    Curve("learning_rate", "Learning rate"),
    Curve("loss_scale", "Loss scale"),
    Curve("params_norm", "Norm of the parameters"),
    Curve("num_zeros", "Zeros in the gradient"),
)
SPEED = (
    Curve("tokens_per_second", "Tokens per second"),
    Curve("mfu", "MFU", " %", 100.0),
    Curve("tflops", "TFLOP/s of a rank"),
    Curve("milliseconds", "Time of a step", " ms"),
    Curve("memory_mb", "Memory of rank 0: most held so far, and predicted", " MiB"),
)
OTHERS = {
    *("epoch", "step", "finite_grads", "skipped", "weight_decay", "consumed_samples", "tokens_per_second_per_device"),
    *("eta_seconds",),
    *(curve.column for curve in (*LEARNING, *SPEED)),
}
"""Columns that are not plotted as a further loss."""


def sections(runs: Sequence[Run]) -> Iterator[Section]:
    """The section of learning (`LEARNING`, then each column that is neither in `OTHERS` nor a load of experts, as a
    further loss), and the section of speed and memory. A column that has no finite value in any run has no plot."""
    yield _section("learning", "Learning", runs, (*LEARNING, *_further(runs)))
    yield _section("speed", "Speed and memory", runs, SPEED)


def _further(runs: Sequence[Run]) -> Iterator[Curve]:
    names = dict.fromkeys(name for run in runs for name in run.figures.names())
    return (Curve(name, name) for name in names if name not in OTHERS and not name.startswith("expert_load/"))


def _section(id: str, title: str, runs: Sequence[Run], curves: Sequence[Curve]) -> Section:
    plots = [plot for number, curve in enumerate(curves) if (plot := lines(f"{id}-{number}", curve, runs))]
    return Section(id, title, plots=list(plots))


def lines(id: str, curve: Curve, runs: Sequence[Run]) -> Lines | None:
    """The plot of one column with a curve for each run that has a finite value of it, for memory also with what was
    predicted; None if no run has a finite value. id: the plot's name in the page."""
    values = [run.figures.of(curve.column) * curve.scale for run in runs]
    having = [(at, run, own) for at, (run, own) in enumerate(zip(runs, values, strict=True)) if np.isfinite(own).any()]
    if not having:
        return None
    series = [_series(number, run, own, curve.is_of_some_steps) for number, run, own in having]
    if curve.column == "memory_mb":
        series += _predicted(runs)
    text = "; ".join(_words(run, own, curve.unit) for _, run, own in having)
    return Lines(id, curve.title, curve.unit, f"{curve.title} over steps. {text}", series, _table(curve, runs, values))


def _series(number: int, run: Run, values: Array, is_of_some_steps: bool = False) -> Series:
    there = np.flatnonzero(~np.isnan(values)) if is_of_some_steps else np.arange(len(values))
    kept = there[thinned(values[there])]
    axes = {
        "step": run.figures.of("step"),
        "samples": run.figures.of("consumed_samples"),
        "hours": np.nancumsum(run.figures.of("milliseconds")) / 3.6e6,
    }
    x = {name: plain(axis[kept], 9) for name, axis in axes.items() if len(axis)}
    return Series(number, run.name, x, plain(values[kept]))


def _predicted(runs: Sequence[Run]) -> Iterator[Series]:
    for number, run in enumerate(runs):
        measured = run.figures.of("memory_mb")
        if "total" in run.predicted and len(measured):
            whole = _series(number, run, measured)
            x = {name: [axis[0], axis[-1]] for name, axis in whole.x.items()}
            yield Series(number, f"{run.name}, predicted", x, plain([run.predicted["total"]] * 2), is_constant=True)


def _words(run: Run, values: Array, unit: str) -> str:
    finite = np.flatnonzero(np.isfinite(values))
    if not len(finite):
        return f"{run.name}: no number"
    steps = run.figures.of("step")
    first, last, least, most = (
        f"{figure(values[place], unit)} at step {figure(steps[place])}"
        for place in (finite[0], finite[-1], finite[values[finite].argmin()], finite[values[finite].argmax()])
    )
    return f"{run.name}: from {first} to {last}, smallest {least}, largest {most}"


def _table(curve: Curve, runs: Sequence[Run], values: Sequence[Array]) -> Table:
    """A table with a column for each run: values at up to `ROWS` evenly spaced steps, then the smallest, mean and
    largest."""
    own = [
        dict(zip(run.figures.of("step").tolist(), column.tolist(), strict=True)) if len(column) else {}
        for run, column in zip(runs, values, strict=True)
    ]
    there = np.array(sorted({step for column in own for step, value in column.items() if value == value}))
    chosen = there[np.unique(np.linspace(0, len(there) - 1, ROWS).astype(int))] if len(there) else there
    rows = [[figure(step), *(figure(column.get(step), curve.unit) for column in own)] for step in chosen.tolist()]
    finite = [column[np.isfinite(column)] for column in values]
    for name, of in (("smallest", np.min), ("mean", np.mean), ("largest", np.max)):
        rows.append([name, *(figure(float(of(column)), curve.unit) if len(column) else ABSENT for column in finite)])
    return Table(f"{curve.title}: figures", ["step", *(run.name for run in runs)], rows)
