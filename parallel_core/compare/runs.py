"""Two runs to compare: output folders, with or without recorded steps, or cases that were recorded of Megatron."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from parallel_core.checkpoint.commit import METRICS
from parallel_core.compare.differences import Difference, differences
from parallel_core.compare.recorded import DAMAGES, RECORD, Step, read_record, recorded_steps
from parallel_core.compare.sample import Sample
from parallel_core.report.run import Run
from parallel_core.report.settings import flat
from parallel_core.system.files import read_json

CURVE = "curve.json"
_NAMES = {"lm_loss": "loss", "learning_rate": "lr"}
_OWN = ("training_config.output_dir",)
"""Settings that are different in any two runs."""


class ComparedRun:
    """A run to compare, read from `folder`: an output folder, or a case recorded of Megatron (with curve.json). Its
    steps are counted from 1. `settings` (the configuration) and `environment` are tables of path -> text; of an output
    folder that lacks them they are empty. Raises OSError or ValueError for a file that cannot be read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.settings: dict[str, str] = {}
        self.environment: dict[str, str] = {}
        self._curve: dict[int, dict[str, Any]] = {}
        self._recorded: dict[int, Path] = {}
        self._last: tuple[int, Step] | None = None
        self._is_case = (folder / CURVE).exists()
        self._read_case() if self._is_case else self._read_run()

    @property
    def steps(self) -> list[int]:
        """The steps of which figures or a record are known, ascending."""
        return sorted(self._curve.keys() | self._recorded.keys())

    @property
    def recorded(self) -> list[int]:
        """The steps, ascending, that are recorded with more than logged figures; of a case the first and the last."""
        return sorted(self._recorded)

    def figures(self, step: int) -> Step:
        """Step `step` with its logged figures alone (no figures for a step that is not known), without activations,
        gradients and weights."""
        return Step(self._curve.get(step, {}), self.dtype)

    @property
    def dtype(self) -> str:
        """The type in which layers compute, by `settings`; float32 where they do not say."""
        named = self.settings.get("training_config.bf16"), self.settings.get("training_config.fp16")
        return "bfloat16" if named[0] == "true" else "float16" if named[1] == "true" else "float32"

    def step(self, step: int) -> Step:
        """The figures of step `step`, with tokens, activations, gradients and weights where they are recorded; with
        `previous` only if the record has no weights from before the step, and the record that was read last is that of
        step - 1. Raises ValueError if the step's record cannot be read or is not whole (`read_record`)."""
        if step not in self._recorded:
            return self.figures(step)
        found = self._case_step(step) if self._is_case else read_record(self._recorded[step], step)
        found.figures = {**self._curve.get(step, {}), **found.figures}
        if not found.before and self._last is not None and self._last[0] == step - 1:
            found.previous = self._last[1].after
        self._last = step, found
        return found

    def _read_run(self) -> None:
        run = Run(self.folder)
        run.refresh()
        self.settings = dict(flat(run.start.get("config"), ""))
        self.environment = dict(flat(run.start.get("environment"), ""))
        path = self.folder / METRICS
        for line in path.read_text().splitlines() if path.exists() else ():
            row = _row(line)
            if isinstance(row.get("step"), int):
                self._curve[row["step"]] = row
        for folder in (self.folder / RECORD, self.folder):
            for step in recorded_steps(folder):
                self._recorded.setdefault(step, folder)

    def _read_case(self) -> None:
        config = self._case_json("config.json", dict)
        self._resolved: Mapping[str, Any] = config.get("resolved_args", {})
        if not isinstance(self._resolved, dict):
            raise ValueError(f"{self.folder / 'config.json'}: resolved_args must be an object; record it again")
        self.settings = {f"megatron.{name}": value for name, value in flat(self._resolved, "")}
        for kind in ("bf16", "fp16"):
            self.settings[f"training_config.{kind}"] = "true" if self._resolved.get(kind) else "false"
        rows = self._case_json(CURVE, list)
        if not rows or not all(isinstance(row, dict) for row in rows):
            raise ValueError(f"{self.folder / CURVE}: must be a list of steps' figures, one at least; record it again")
        self._curve = {number: _named(row) for number, row in enumerate(rows, 1)}
        self._recorded = dict.fromkeys((1, len(rows)), self.folder)

    def _case_json(self, name: str, kind: type[dict[str, Any]] | type[list[Any]]) -> Any:
        """The content of a case's file of JSON, of type `kind`."""
        found = read_json(self.folder / name)
        if not isinstance(found, kind):
            raise ValueError(f"{self.folder / name}: must be a JSON {kind.__name__}; record it again")
        return found

    def _case_step(self, step: int) -> Step:
        try:
            return self._whole_case_step(step)
        except DAMAGES as error:
            raise ValueError(f"{self.folder}: is no whole record of step {step} ({error}); record it again") from error

    def _whole_case_step(self, step: int) -> Step:
        found = self.figures(step)
        tokens = np.load(self.folder / "tokens.npy")[:, :-1]
        rows, of_one = len(tokens) // len(self._curve), int(self._resolved.get("micro_batch_size") or 1)
        batch = tokens[(step - 1) * rows : step * rows]
        found.tokens = {number: batch[start : start + of_one] for number, start in enumerate(range(0, rows, of_one))}
        files = {"weights.npz": (1, found.before), "grads_step1.npz": (1, found.gradients)}
        files["weights_final.npz"] = len(self._curve), found.after
        for name, (of, target) in files.items():
            if step == of and (self.folder / name).exists():
                arrays = np.load(self.folder / name)
                target.update((key, Sample.of(arrays[key])) for key in arrays.files)
        return found


def _row(line: str) -> dict[str, Any]:
    """Name -> figure, from a line of a run's metrics.jsonl, by the names of steps' records ("loss", "lr"); empty for a
    line that a crash cut off."""
    try:
        row = json.loads(line)
    except ValueError:
        return {}
    return _named(row) if isinstance(row, dict) else {}


def _named(row: Mapping[str, Any]) -> dict[str, Any]:
    return {_NAMES.get(name, name): value for name, value in row.items()}


def apart(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """Lines "path: one | other", one for each path whose values in the two tables differ, without paths that only one
    table has and without that of --save."""
    both = [path for path in one if path in other and path not in _OWN]
    return [f"{path}: {one[path]} | {other[path]}" for path in both if one[path] != other[path]]


def first_differences(one: ComparedRun, other: ComparedRun, exact: bool) -> list[Difference]:
    """The `differences` (with `exact`) of the first step, of those that both runs have, in which there are any; empty
    if there is none. Steps that one run has not recorded are compared by their logged figures. Raises as
    `ComparedRun.step`."""
    for step in sorted({*one.steps} & {*other.steps}):
        is_recorded = step in one.recorded and step in other.recorded
        pair = (one.step(step), other.step(step)) if is_recorded else (one.figures(step), other.figures(step))
        if found := list(differences(step, *pair, exact)):
            return found
    return []
