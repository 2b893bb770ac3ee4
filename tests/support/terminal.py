"""Running a command on a pseudo-terminal."""

import os
import pty
import re
import subprocess
from collections.abc import Sequence


def run_on_terminal(command: Sequence[str], columns: int = 120, **options) -> tuple[int, str]:
    """Exit code, and all that the command wrote to the pseudo-terminal that it takes for its standard output."""
    ours, theirs = pty.openpty()
    options["env"] = {**options.get("env", os.environ), "COLUMNS": str(columns)}
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, **options)
    os.close(theirs)
    written = b""
    try:
        while block := os.read(ours, 65536):
            written += block
    except OSError:  # Linux's error for a terminal that no process has open
        pass
    os.close(ours)
    return process.wait(), written.decode(errors="replace")


def screen(written: str) -> list[str]:
    """The lines that stand on the terminal in the end, without colours; of a line that was cleared the part after the
    last clearing."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", written)
    return [line.rpartition("\x1b[K")[2].rstrip("\r") for line in plain.split("\n")]
