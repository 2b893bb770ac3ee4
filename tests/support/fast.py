"""`python -m pytest -m fast`: plans alone, in a minute.

Fast is every test of `FOLDERS` that is not marked `slow`. While they alone run, a process that is started and an import
of MindSpore are errors, so that what is fast stays so; other folders are not even collected, which would import it.
"""

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.assets import ROOT

FOLDERS = tuple(ROOT / "tests" / name for name in ("mapping", "parallel_core"))
REFUSED = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn")
"""CPython's audit events of starting a process."""


class NotFast(RuntimeError):
    """Raised when a test that counts as fast does something that takes seconds."""


def is_alone(config: pytest.Config) -> bool:
    """Whether only fast tests were asked for."""
    return config.getoption("markexpr") == "fast"


def concerns(path: Path) -> bool:
    """Whether a path lies in one of FOLDERS or above one."""
    return any(path.is_relative_to(folder) or folder.is_relative_to(path) for folder in FOLDERS)


def is_fast(item: pytest.Item) -> bool:
    """Whether a test lies in FOLDERS and is marked neither slow nor exhaustive."""
    slow = any(item.get_closest_marker(name) for name in ("slow", "exhaustive"))
    return not slow and any(item.path.is_relative_to(folder) for folder in FOLDERS)


def refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook that raises NotFast for a started process (REFUSED) or an import of MindSpore."""
    if event in REFUSED:
        raise NotFast(f"{event}: mark a test that starts a process with pytest.mark.slow")
    if event == "import" and arguments[0] == "mindspore":
        raise NotFast("import of MindSpore: mark the test with pytest.mark.slow")


def keep_fast() -> None:
    """Let `refuse` act in this process from now on."""
    import numpy.testing  # noqa: F401 - which starts a process when it is imported

    sys.addaudithook(refuse)
