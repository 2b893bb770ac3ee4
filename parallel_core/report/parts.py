"""The parts of a page, as values; `dataclasses.asdict` makes dictionaries of them, for JSON."""

from dataclasses import dataclass, field
from typing import Any

ABSENT = "-"
"""The text of a table's cell without a value."""
Number = float | None
"""A value of a plot; None is a gap."""


@dataclass(frozen=True)
class Table:
    """Rows of cells, each a text, under a caption and column headings; `marked`: indices of rows in which runs
    differ."""

    caption: str
    columns: list[str]
    rows: list[list[str]]
    marked: list[int] = field(default_factory=list)
    """Indices of the rows in which runs differ."""


@dataclass(frozen=True)
class Series:
    """A curve of the run with the index `run` on the page: values y, and x: for each of the axes "step", "samples" and
    "hours" for which the run has figures, the values' places on it. is_constant: whether it is a horizontal line to
    compare with."""

    run: int
    name: str
    x: dict[str, list[Number]]
    """Axis ("step", "samples", "hours"), if the run has it -> the place of each value of `y` on it."""
    y: list[Number]
    is_constant: bool = False
    """Whether the curve is a horizontal line to compare with, such as a prediction."""


@dataclass(frozen=True)
class Lines:
    """A plot of curves over steps (or samples, or hours); `text` describes it in words, `table` has figures of it."""

    id: str
    title: str
    unit: str
    text: str
    """The plot described in words, for those who do not see it."""
    series: list[Series]
    table: Table
    kind: str = "lines"


@dataclass(frozen=True)
class Heat:
    """A heat map of values z [len(y), len(x)]; `text` describes it in words, `table` has figures of it."""

    id: str
    title: str
    x_title: str
    y_title: str
    text: str
    x: list[Any]
    y: list[str]
    z: list[list[Number]]
    table: Table
    kind: str = "heat"


@dataclass(frozen=True)
class Bars:
    """Bars in rows (ranks, stages) on one time axis, in milliseconds; `kinds`: kind of work -> [row, start, duration,
    name] of each bar."""

    id: str
    title: str
    text: str
    rows: list[str]
    kinds: dict[str, list[list[Any]]]
    """Kind of work -> [row, start, duration, name] of each of its bars; times in milliseconds."""
    table: Table
    kind: str = "bars"


Plot = Lines | Heat | Bars


@dataclass(frozen=True)
class Section:
    """A heading, a note under it, then plots and tables."""

    id: str
    title: str
    note: str = ""
    plots: list[Plot] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)


@dataclass(frozen=True)
class Page:
    """All sections of a page, and the names of its runs in the order that `Series.run` counts."""

    title: str
    runs: list[str]
    sections: list[Section]


def figure(value: Number, unit: str = "") -> str:
    """A number as text, with `unit` right behind it; "-" alone for None and NaN, "inf" for infinity. At most six
    significant digits, with thousands separators; where these make less than 0.0001 (but for 0), with a power of ten;
    where they make a million or more, at most four digits and a power of ten (1.235e+06). The sign does not count in
    this."""
    if value is None or value != value:
        return ABSENT
    return f"{value:,.6g}{unit}" if abs(value) < 1e6 else f"{value:,.4g}{unit}"
