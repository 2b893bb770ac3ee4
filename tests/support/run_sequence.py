"""A drawn sequence of runs over one folder, and what their logs promise of it.

A sequence goes on, goes back, begins anew where it may not, begins anew all the same, is killed, meets another job, and
deletes what is too many. Whoever executes the runs (`tests/pynative/checkpointing/test_run_sequence.py` in one process,
`tests/support/launched_sequence.py` by msrun), after each the `Ledger` looks at the folder: every checkpoint of which a
log said that it is saved, and none that it is deleted, is there, whole, of its run, and has the very bytes that a run
without accidents has at that iteration; figures are those of that run, each step once.
"""

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from parallel_core.checkpoint import commit
from parallel_core.checkpoint.lock import LOCK
from parallel_core.checkpoint.manifest import MANIFEST, Manifest
from parallel_core.checkpoint.reader import CheckpointReader

Checksums = dict[str, dict[str, int]]
MOST_STEPS = 6
"""Most steps that a drawn run makes."""
LAST = 40
"""The iteration from which on a sequence overwrites its folder and begins anew."""
SAVED = re.compile(r"Saved checkpoint (\S+) \(")
DELETING = re.compile(r"Deleting checkpoint (\S+) \(")
MOVED = re.compile(r"Moved what an earlier run has left \((.*)\) to (\S+)$")


@dataclass
class Plan:
    """A drawn run: its kind and flags, and whether it is killed."""

    kind: str
    flags: list[str]
    until: int | None
    """The iteration after which the run ends; None: it is refused before."""
    is_killed: bool = False
    meets: bool = False
    """Another job holds the folder when the run starts, or starts while it runs."""

    @property
    def trims(self) -> bool:
        """Whether the run deletes checkpoints that are too many."""
        return "--keep-checkpoint-max" in self.flags or "--save-retain-interval" in self.flags


def checksums(folder: Path) -> Checksums:
    """Checksums of every tensor in every file of a checkpoint; all bytes are read."""
    reader = CheckpointReader(folder)
    assert reader.damaged_files() == [], folder
    return {name: record.crc32 for name, record in reader.manifest.files.items()}


def iterations(root: Path) -> list[int]:
    """Iterations of the checkpoints in the folder, in order."""
    return sorted(int(path.name[5:]) for path in root.glob("iter_*"))


def tree(root: Path) -> dict[str, tuple[int, int]]:
    """Path -> (size, modification time) of all in the folder but the lock."""
    there = [path for path in root.rglob("*") if path.name != LOCK]
    return {str(path.relative_to(root)): (path.stat().st_size, path.stat().st_mtime_ns) for path in there}


def draw(random: np.random.Generator, root: Path, elsewhere: Path, is_first: bool) -> Plan:
    """Draw the next run over `root`. elsewhere: the folder of another run, which it may load. is_first: no run was
    there before."""
    there = iterations(root)
    latest = Manifest.read(commit.find(root)).iteration if there else 0
    kinds = {"goes on": 9, "goes back": 2, "begins anew": 2, "overwrites": 2, "loads elsewhere": 1, "finetunes": 1}
    kinds |= {"loads nothing": 1}
    names = list(kinds)
    kind = "overwrites" if latest >= LAST else str(random.choice(names, p=np.array(list(kinds.values())) / 18))
    start, flags = latest, ["--load", str(root)]
    if kind == "goes back" and there:
        start = int(random.choice(there))
        flags += ["--ckpt-step", str(start)]
    elif kind == "finetunes" and there:
        flags += ["--finetune"]
    elif kind == "loads elsewhere":
        start, flags = Manifest.read(commit.find(elsewhere)).iteration, ["--load", str(elsewhere)]
    elif kind in ("begins anew", "overwrites"):
        start, flags = 0, ["--overwrite-save"] if kind == "overwrites" else []
    elif kind == "loads nothing":
        flags = ["--load", str(root / "nowhere")]
    else:
        kind = "goes on"
    kept = {"all": [], "few": ["--keep-checkpoint-max", str(random.integers(1, 4))]}
    kept["some"] = ["--save-retain-interval", "4"]
    keeps = kept[str(random.choice(["all", "few", "some"], p=[0.5, 0.3, 0.2]))]
    flags += ["--save", str(root), "--save-interval", "2" if "4" in keeps else str(random.integers(1, 4)), *keeps]
    flags += ["--async-save"] if random.random() < 0.3 else []
    until = start + int(random.integers(1, MOST_STEPS + 1))
    chance = random.random()
    plan = Plan(kind, [*flags, "--exit-interval", str(until)], until, chance < 0.35, 0.35 <= chance < 0.5)
    return plan if is_first or plan.kind != "loads elsewhere" or there else draw(random, root, elsewhere, is_first)


def refusal(plan: Plan, root: Path) -> str | None:
    """Words of the error with which the run must be refused; None if it may begin or go on."""
    if plan.kind == "loads nothing":
        return "nowhere"
    if plan.kind in ("begins anew", "loads elsewhere", "finetunes") and iterations(root):
        return f"has iteration {iterations(root)[-1]} of an earlier run"
    return None


@dataclass
class Ledger:
    """The promises that the logs of runs have made about a folder (`root`), and checks that they are kept."""

    root: Path
    expected: list[Checksums]
    """Checksums of a run without accidents at each iteration, from 1 on."""
    losses: list[float]
    promises: dict[Path, str | None] = field(default_factory=dict)
    """Path of each promised checkpoint -> the id of its run."""
    aside: dict[Path, bytes] = field(default_factory=dict)
    """Path -> content of metrics files that were moved aside."""
    went_back: bool = False
    tally: Counter[str] = field(default_factory=Counter)
    _seen: dict[Path, tuple] = field(default_factory=dict)

    def listen(self, plan: Plan, lines: list[str]) -> None:
        """Take up the promises in the log of a run: checkpoints saved, deleted and moved."""
        saved: list[Path] = []
        self.went_back = self.went_back or plan.kind == "goes back"
        for line in lines:
            if found := SAVED.search(line):
                saved.append(Path(found[1]))
            elif found := DELETING.search(line):
                self._delete(plan, Path(found[1]), saved)
            elif found := MOVED.search(line):
                self._move(Path(found[2]))
        for path in saved:
            run = Manifest.read(path).run_id
            assert self.promises.get(path, run) == run, f"{path} of another run is replaced"
            self.promises[path] = run
            self.tally["saved"] += 1

    def _delete(self, plan: Plan, path: Path, saved: list[Path]) -> None:
        assert plan.trims, f"{path} is deleted by a run that keeps all"
        run = Manifest.read(commit.find(self.root)).run_id  # a save publishes before it deletes
        assert self.promises.get(path, run) == run, f"{path} of another run is deleted"
        self.promises.pop(path, None)
        if path in saved:
            saved.remove(path)
        self.tally["deleted"] += 1

    def _move(self, folder: Path) -> None:
        self.promises = {
            folder / path.name if path.parent == self.root else path: r for path, r in self.promises.items()
        }
        self.tally["moved"] += 1
        self.went_back = False

    def check(self) -> None:
        """Assert that every promised checkpoint is whole and of its run, and that metrics.jsonl has the run's
        figures."""
        places = [self.root, *self.root.glob(f"{commit.EARLIER}_*")]
        for path, run in self.promises.items():
            self._check_checkpoint(path, run, places)
        self._check_figures()
        for path in self.root.glob(f"{commit.EARLIER}_*/{commit.METRICS}"):
            assert self.aside.setdefault(path, path.read_bytes()) == path.read_bytes(), f"{path} has changed"

    def _check_figures(self) -> None:
        """Assert that metrics.jsonl has each step once and in order, none left out, except those of a run that went
        back and was killed before it saved, behind which the next run goes on from where it was before."""
        rows = {row["step"]: row["loss"] for row in self._rows(self.root / commit.METRICS)}
        assert rows == {step: self.losses[step - 1] for step in sorted(rows)}
        assert list(rows) == sorted(rows) and (self.went_back or len(rows) == max(rows, default=0)), list(rows)

    def _check_checkpoint(self, path: Path, run: str | None, places: list[Path]) -> None:
        """Assert that a promised checkpoint is there, or in one of `places`: a killed run may have moved it, or begun
        to replace it, without saying so."""
        found = [path, *(place / path.name for place in places), self.root / f".{path.name}.replaced"]
        assert any(self._run_of(each) == run for each in found), f"{path} is not there, though it was saved"

    def _run_of(self, path: Path) -> str | None:
        """The id of a checkpoint's run, None if it is not there; all bytes are compared when it is seen for the first
        time."""
        try:
            state = (path / MANIFEST).stat()
        except FileNotFoundError:
            return None
        if self._seen.get(path, (0,))[0] != (state.st_ino, state.st_mtime_ns):
            manifest = Manifest.read(path)
            assert checksums(path) == self.expected[manifest.iteration - 1], path
            self._seen[path] = ((state.st_ino, state.st_mtime_ns), manifest.run_id)
        return self._seen[path][1]

    def _rows(self, path: Path) -> list[dict]:
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        assert all(line.endswith(b"\n") for line in lines[:-1])
        return [json.loads(line) for line in lines if line.endswith(b"\n")]

    def finished(self, plan: Plan) -> None:
        """Assert of a run that came to its end: its last iteration is the latest, there are no stray files, and no more
        checkpoints than asked for."""
        assert int((self.root / commit.TRACKER).read_text()) == plan.until, plan
        left = [path.name for path in self.root.glob(".*")]
        assert left == [], (plan, left)
        run = Manifest.read(commit.find(self.root)).run_id
        own = [n for n in iterations(self.root) if self.promises.get(self.root / commit.checkpoint_name(n)) == run]
        if "--keep-checkpoint-max" in plan.flags:
            assert len(own) <= int(plan.flags[plan.flags.index("--keep-checkpoint-max") + 1]), (plan, own)
        if "--save-retain-interval" in plan.flags:
            assert sum(iteration % 4 != 0 for iteration in own) <= 1, (plan, own)
