"""The figures of every step of a run, by name, read as the file grows."""

from array import array
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from parallel_core.numerics.dtypes import Array
from parallel_core.report.lines import LinesReader

NAN = float("nan")
NUMBERS = frozenset({bool, float, int})
"""The types of a number in parsed JSON. They are compared by identity, because a long run has millions of values."""


class Figures:
    """The columns of a run's `metrics.jsonl`: a figure by name over steps, NaN for a step whose line lacks it."""

    def __init__(self, path: Path) -> None:
        self._reader = LinesReader(path)
        self._clear()

    def _clear(self) -> None:
        self._columns: dict[str, array[float]] = {}
        self._count = self._without_a_step = 0

    @property
    def unreadable(self) -> int:
        """The number of lines, without empty ones and `{}`, that are no JSON object or have no finite step."""
        return self._reader.unreadable + self._without_a_step

    def refresh(self) -> bool:
        """Read the lines that were added to the file, or all of a file that began anew, and return whether `of` or
        `unreadable` may answer otherwise than before."""
        begins_anew, lines = self._reader.new()
        if begins_anew:
            self._clear()
        before = self._count, self.unreadable
        for line in lines:
            self._add(line)
        return begins_anew or before != (self._count, self.unreadable)

    def _add(self, line: Mapping[str, Any]) -> None:
        step = line.get("step")
        if type(step) not in NUMBERS or not isfinite(_float(step)):
            self._without_a_step += bool(line)
            return
        self._put("", line)
        self._count += 1

    def _put(self, prefix: str, values: Mapping[str, Any]) -> None:
        """Append a line's numbers to the columns of their names, with `prefix` before these; those of a dictionary by
        layer to columns such as `expert_load/3`."""
        for key, value in values.items():
            if type(value) in NUMBERS:
                name = prefix + key
                column = self._columns.get(name)
                if column is None:
                    column = self._columns[name] = array("d")
                if len(column) < self._count:
                    column.extend([NAN] * (self._count - len(column)))
                if len(column) == self._count:  # a name that a line has twice counts once
                    column.append(_float(value))
            elif type(value) is dict and not prefix:
                self._put(f"{key}/", value)

    def names(self) -> list[str]:
        """Names of all columns: of figures that are numbers, in lines with a finite step, "step" among them; those of a
        dictionary as "key/name"."""
        return list(self._columns)

    def of(self, name: str) -> Array:
        """A column as float64 [steps], in order of the steps; of a step that the file has twice the later line. Empty
        for a name that is not among `names`."""
        order = self._order()
        if name not in self._columns:
            return np.empty(0)
        column = np.full(self._count, NAN)
        column[: len(self._columns[name])] = self._columns[name]
        return column[order]

    def _order(self) -> Array:
        steps = np.array(self._columns.get("step", ()))
        if np.all(np.diff(steps) > 0):
            return np.arange(len(steps))
        _, last = np.unique(steps[::-1], return_index=True)
        return len(steps) - 1 - last


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf")
