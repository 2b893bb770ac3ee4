"""Processor time of a command, which the load of the machine changes least."""

import resource
import subprocess
from collections.abc import Sequence

from tests.support.assets import ROOT


def command_seconds(command: Sequence[str]) -> tuple[float, str]:
    """A command's processor time, its interpreter's start included, and its standard output."""
    before = _of_children()
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    return _of_children() - before, done.stdout


def _of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime
