"""The parts of a page, as values; `dataclasses.asdict` makes JSON of them."""

from dataclasses import dataclass, field
from typing import Any

ABSENT = "-"
"""A cell without a value."""
Number = float | None
"""None is a gap."""


@dataclass(frozen=True)
class Table:
    """Rows of words under a caption."""

    caption: str
    columns: list[str]
    rows: list[list[str]]
    marked: list[int] = field(default_factory=list)
    """Rows in which runs differ."""


@dataclass(frozen=True)
class Series:
    """A curve of a run."""

    run: int
    name: str
    x: dict[str, list[Number]]
    """Values over each axis: step, samples, hours."""
    y: list[Number]
    is_constant: bool = False
    """A line to compare with, such as a prediction."""


@dataclass(frozen=True)
class Lines:
    """Curves over steps."""

    id: str
    title: str
    unit: str
    text: str
    """The plot in words, for who does not see it."""
    series: list[Series]
    table: Table
    kind: str = "lines"


@dataclass(frozen=True)
class Heat:
    """A heat map."""

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
    """Bars of rows on one time axis, in milliseconds."""

    id: str
    title: str
    text: str
    rows: list[str]
    kinds: dict[str, list[list[Any]]]
    """Kind -> [row, start, duration, name] of each."""
    table: Table
    kind: str = "bars"


Plot = Lines | Heat | Bars


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it."""

    id: str
    title: str
    note: str = ""
    plots: list[Plot] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)


@dataclass(frozen=True)
class Page:
    """All of it."""

    title: str
    runs: list[str]
    sections: list[Section]


def figure(value: Number, unit: str = "") -> str:
    """A number for people."""
    if value is None or value != value:
        return ABSENT
    return f"{value:,.6g}{unit}" if abs(value) < 1e6 else f"{value:,.4g}{unit}"
