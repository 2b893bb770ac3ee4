"""A training's steps as one line of a terminal that updates; everything else that it prints stays above that line."""

import re
import shutil
from collections.abc import Iterable, Sequence
from typing import TextIO

STEP = re.compile(r"INFO - Epoch: .*Step: (\d+), Loss: (\S+),.* Tokens/s: ([\d.]+),.* ETA: (.+?), Time: ")
CLEAR_LINE = "\r\x1b[K"
BAR_WIDTH = 24


def train_iters(command: Sequence[str]) -> int | None:
    """The number of steps that the command asks for; None where it stands in a file or is counted in samples."""
    words = " ".join(command).replace("--train-iters=", "--train-iters ").split()
    counts = [words[i + 1] for i, word in enumerate(words[:-1]) if word == "--train-iters"]
    return int(counts[-1]) if counts and counts[-1].isdigit() else None


def progress_line(found: re.Match[str], total: int | None, width: int) -> str:
    """A bar, step, loss, tokens per second and estimated time left, in at most `width` columns."""
    step, loss, tokens_per_second, time_left = found.groups()
    parts = [f"step {step}", f"loss {float(loss):.4f}", f"{float(tokens_per_second):,.0f} tokens/s", f"ETA {time_left}"]
    if total:
        filled = min(BAR_WIDTH, BAR_WIDTH * int(step) // total)
        parts[0] = f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] step {step}/{total}"
    return "  ".join(parts)[: width - 1]


def show(lines: Iterable[str], total: int | None, output: TextIO) -> None:
    """On a terminal steps update its last line, and other lines are put above it; elsewhere lines are lines."""
    last, clear = "", CLEAR_LINE * output.isatty()
    for line in lines:
        if clear and (found := STEP.match(line)):
            last = progress_line(found, total, shutil.get_terminal_size().columns)
            output.write(clear + last)
        else:
            output.write(clear + line.rstrip("\n") + "\n" + last)
        output.flush()
    if last:
        output.write("\n")
