"""A process that dies at one step of what it does to a disk: without a word, and without what Python still tidies up.

Steps are what the system is asked for: making, opening, writing (before, and with half of the bytes there), syncing,
renaming, removing. A test tries each of them.
"""

import io
import itertools
import os
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree"}
"""Names of Python's audit events that change a disk."""
DIED, WENT_ON = 77, 0


def deaths(prepare: Callable[[], Any], work: Callable[[Any], None]) -> Iterator[tuple[int, Any]]:
    """For each step of `work` in turn (step's number, what `prepare` made for it), after a child process did `work` on
    that and died at that step."""
    for step in itertools.count(1):
        made = prepare()
        if not dies(step, lambda made=made: work(made)):
            return
        yield step, made


def dies(step: int, work: Callable[[], None]) -> bool:
    """Whether a child process that does `work` gets as far as this step, at which it ends at once."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            _count_down(step)
            work()
            code = WENT_ON
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (DIED, WENT_ON), f"exit code {code} at step {step}"
    return code == DIED


def _count_down(step: int) -> None:
    left = iter(range(step - 1))

    def one_step() -> None:
        if next(left, None) is None:
            os._exit(DIED)

    def audit(event: str, arguments: tuple) -> None:
        if event in CHANGES or (event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_ACCMODE):
            one_step()

    class Halting(io.BufferedWriter):
        def write(self, data: Any) -> int:
            one_step()
            half = memoryview(data).nbytes // 2
            super().write(memoryview(data).cast("B")[:half])
            self.flush()
            one_step()
            return half + super().write(memoryview(data).cast("B")[half:])

    def opened(file: Any, mode: str = "r", *arguments: Any, **named: Any) -> Any:
        if "r" in mode:
            return open(file, mode, *arguments, **named)
        raw = Halting(io.FileIO(file, mode.replace("b", "").replace("t", "")))
        return raw if "b" in mode else io.TextIOWrapper(raw, encoding="utf-8", write_through=True)

    class Module:
        open = staticmethod(opened)
        text_encoding = staticmethod(io.text_encoding)

    pathlib.io = Module  # type: ignore[attr-defined]
    os.fsync = lambda descriptor: one_step()
    sys.addaudithook(audit)
