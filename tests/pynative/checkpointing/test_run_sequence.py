"""200 drawn runs over one folder, in one process: whatever happens, what a log promised is there and whole.

Each is a whole `pretrain`, of a model of eight numbers. By msrun: `python -m tests.support.launched_sequence`.
"""

import json
import os
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np

from parallel_core.checkpoint import commit, lock
from tests.support.distributed import run
from tests.support.dying import CHANGES
from tests.support.engine import TINY, job
from tests.support.layouts import Rows
from tests.support.locks import hold
from tests.support.pretraining import listening
from tests.support.run_sequence import LAST, MOST_STEPS, Ledger, Plan, checksums, draw, refusal, tree

FLAGS = f"{TINY} --train-iters 1000 --lr-decay-style cosine --micro-batch-size 1 --global-batch-size 2 --log-interval 1"
RUNS = 200


class Died(BaseException):
    """Raised where the process would have been killed; from there on the run changes nothing on the disk."""


class Killer:
    """Raises Died at the n-th change of the disk, seen by an audit hook (`left` = n; None: never), and at every later
    one."""

    def __init__(self) -> None:
        self.left: int | None = None
        sys.addaudithook(self._audit)  # an audit hook cannot be removed

    def _audit(self, event: str, arguments: tuple) -> None:
        if self.left is None or not (event in CHANGES or _writes(event, arguments)):
            return
        self.left -= 1
        if self.left < 0:
            raise Died

    @property
    def struck(self) -> bool:
        return self.left is not None and self.left < 0


def _writes(event: str, arguments: tuple) -> bool:
    return event == "open" and isinstance(arguments[2], int) and bool(arguments[2] & os.O_ACCMODE)


def eight_numbers():
    """A model of eight parameters whose loss depends on the step's samples."""
    import mindspore as ms
    from mindspore import nn, ops

    class EightNumbers(nn.Cell):
        def __init__(self) -> None:
            super().__init__(auto_prefix=False)
            self.w = ms.Parameter(ms.Tensor(np.linspace(-1, 1, 8).astype(np.float32)), name="w")

        def set_input_tensor(self, tensor) -> None:
            """Ignored: there is no stage before this one."""

        def construct(self, tokens, labels, loss_mask, position_ids):
            return ops.ReduceMean()(ops.Square()(ops.Cast()(tokens[:, :8], ms.float32) * 0.1 - self.w))

    return EightNumbers()


class Runs:
    """Executes whole `pretrain` runs of the eight numbers in this process, one after the other."""

    def __init__(self, backend) -> None:
        self.backend, self.killer = backend, Killer()
        rows = Rows()
        self.samples = [rows[number % 15] for number in range(4 * (LAST + MOST_STEPS))]

    def train(self, flags: list[str], looks: bool = True, steps_to_live: int | None = None) -> tuple[str, list[str]]:
        """(error's text, "died" if killed, "" if it succeeded; log lines) of a run. looks: check folders first, as a
        command line does. steps_to_live: changes of the disk until Died."""
        from mapping import init_configs_from_args, parse_args
        from pynative.training.training import pretrain

        ended = ""
        with listening() as said:
            try:
                args = parse_args([*FLAGS.split(), *flags], world_size=1, check_files=looks)
                config = init_configs_from_args(args)
                with job(self.backend, config):
                    self.killer.left = steps_to_live
                    pretrain(lambda numbers: (self.samples, None, None), lambda **_: eight_numbers(), all_config=config)
            except (ValueError, RuntimeError, Died) as error:
                ended = str(error) or "died"
            finally:
                self.killer.left, ended = None, "died" if self.killer.struck else ended
        return ended, said


def execute(runs: Runs, plan: Plan, random: np.random.Generator, ledger: Ledger) -> None:
    """Execute a drawn run, perhaps killed or beside another job that holds the folder; check that it ended as it must
    and note it in the ledger."""
    root, told = ledger.root, refusal(plan, ledger.root)
    before = tree(root)
    if plan.meets:
        (root / lock.LOCK).unlink(missing_ok=True)  # otherwise the run would wait for the dead holder's heartbeat
        other = hold(root)
        ended, said = runs.train(plan.flags, looks=bool(random.integers(2)))
        other.kill()
        other.wait()
        assert f"process {other.pid} on" in ended or (told and told in ended), (plan, ended)
        assert tree(root) == before and not any("Saved" in line for line in said)
        ledger.tally["kept out"] += 1
        return
    ended, said = runs.train(plan.flags, steps_to_live=int(random.integers(0, 40)) if plan.is_killed else None)
    ledger.listen(plan, said)
    if told:
        assert told in ended and tree(root) == before, (plan, ended)
        ledger.tally["refused"] += 1
    elif ended == "died":
        _is_gone(root, random)
        ledger.tally["killed"] += 1
    else:
        assert ended == "", (plan, ended)
        ledger.finished(plan)
        ledger.tally[plan.kind] += 1


def _is_gone(root: Path, random: np.random.Generator) -> None:
    """Rewrite the folder's lock, if there is one, as if its holder had ended or ran on another machine."""
    held = lock.read(root)
    if held is not None:
        gone = replace(held, start="1") if random.integers(2) else replace(held, machine="another")
        (root / lock.LOCK).write_text(json.dumps(vars(gone)))


def sequence(backend, folder: Path, seed: int) -> Counter:
    """Execute 200 drawn runs over one folder and check the ledger after each; the count of each outcome."""
    random, runs = np.random.default_rng(seed), Runs(backend)
    last = LAST + MOST_STEPS
    with patch("os.fsync"), patch.object(lock, "SILENCE_SECONDS", 0.02), patch.object(lock, "_SETTLE_SECONDS", 0.0):
        reference = folder / "reference"
        ended, _ = runs.train(["--save", str(reference), "--save-interval", "1", "--exit-interval", str(last)])
        assert ended == ""
        rows = [json.loads(line) for line in (reference / commit.METRICS).read_text().splitlines()]
        expected = [checksums(reference / commit.checkpoint_name(number)) for number in range(1, last + 1)]
        ledger = Ledger(folder / "save", expected, [row["loss"] for row in rows])
        ledger.root.mkdir()
        for number in range(RUNS):
            plan = draw(random, ledger.root, reference, number == 0)
            execute(runs, plan, random, ledger)
            ledger.check()
    return ledger.tally


def test_what_a_log_promised_is_there(tmp_path):
    """After each of 200 drawn runs every checkpoint that a log promised is whole; each kind of outcome came up often
    enough to count."""
    (tally,) = run(1, sequence, tmp_path, seed=20260)
    assert sum(tally[kind] for kind in ("goes on", "goes back", "overwrites", "refused", "killed", "kept out")) > 180
    few = {"goes on": 50, "goes back": 5, "overwrites": 5, "refused": 20, "killed": 30, "kept out": 15, "deleted": 30}
    assert all(tally[kind] >= least for kind, least in few.items()), tally
