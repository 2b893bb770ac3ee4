"""Run a training command and show its steps as one line that updates; everything else it prints stays above that line.

    python examples/gpt/progress.py msrun ... pretrain_gpt.py --train-iters 200 ...

For a terminal; every step's line is in the worker's log and in metrics.jsonl all the same. Ends with the command's
exit code.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from threading import Thread
from typing import TextIO

STEP = re.compile(r"INFO - Epoch: .*Step: (\d+), Loss: (\S+),.* Tokens/s: ([\d.]+),.* ETA: (.+?), Time: ")
CLEAR_LINE = "\r\x1b[K"
BAR_WIDTH = 24


def train_iters(command: Sequence[str]) -> int | None:
    """The number of steps that the command asks for; None where it stands in a file or is counted in samples."""
    words = " ".join(command).replace("--train-iters=", "--train-iters ").split()
    counts = [words[i + 1] for i, word in enumerate(words[:-1]) if word == "--train-iters"]
    return int(counts[-1]) if counts and counts[-1].isdigit() else None


def progress_line(found: re.Match, total: int | None, width: int) -> str:
    """A bar, step, loss, tokens per second and estimated time left, in at most `width` columns."""
    step, loss, tokens_per_second, time_left = found.groups()
    parts = [f"step {step}", f"loss {float(loss):.4f}", f"{float(tokens_per_second):,.0f} tokens/s", f"ETA {time_left}"]
    if total:
        filled = min(BAR_WIDTH, BAR_WIDTH * int(step) // total)
        parts[0] = f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] step {step}/{total}"
    return "  ".join(parts)[: width - 1]


def show(lines: Iterable[str], total: int | None, terminal: TextIO) -> None:
    """Steps update the last line of the terminal, other lines are put above it."""
    last = ""
    for line in lines:
        if found := STEP.match(line):
            last = progress_line(found, total, shutil.get_terminal_size().columns)
            terminal.write(CLEAR_LINE + last)
        else:
            terminal.write(CLEAR_LINE + line.rstrip("\n") + "\n" + last)
        terminal.flush()
    if last:
        terminal.write("\n")


def main(command: Sequence[str]) -> int:
    """Run the command; its exit code."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace", "bufsize": 1}
    process = subprocess.Popen(command, **pipes)
    reader = Thread(target=show, args=(process.stdout, train_iters(command), sys.stdout), daemon=True)
    reader.start()
    try:
        code = process.wait()
    except KeyboardInterrupt:  # the terminal has sent it to the command too
        process.wait()
        code = 130
    reader.join(timeout=2)  # what the command leaves behind may hold the pipe open
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
