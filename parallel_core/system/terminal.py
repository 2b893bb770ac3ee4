"""A run's log on a terminal: the line of a step is written over by the next, other lines are put above it, and steps
and lines that begin as a warning or an error have colours. On another stream every line is written as it is. NO_COLOR
(no-color.org), whatever its value, leaves colours out."""

import os
import re
import shutil
from collections.abc import Mapping
from typing import TextIO

STEP = re.compile(r"INFO - Epoch: .*Step: (\d+), Loss: (\S+),.* Tokens/s: ([\d.]+),.* ETA: (.+?), Time: ")
LENGTH = re.compile(r"Training: step \d+ to (\d+),")
CLEAR_LINE = "\r\x1b[K"
BAR_WIDTH = 24
BOLD, RED, GREEN, YELLOW, CYAN = "1", "31", "32", "33", "36"
LEVELS = {"WARNING - ": YELLOW, "ERROR - ": RED, "error: ": RED, "Traceback ": RED}


def is_terminal(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a stream is a terminal on which a line can be written over: none with TERM=dumb."""
    return stream.isatty() and environment.get("TERM") != "dumb"


def has_colours(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether words on a stream may be in colours: on a terminal by `is_terminal`, without NO_COLOR in the
    environment."""
    return is_terminal(stream, environment) and "NO_COLOR" not in environment


def painted(text: str, colour: str, is_coloured: bool) -> str:
    """The text between the escape sequences of a colour, such as "31"; as it is unless `is_coloured`, and for the
    colour ""."""
    return f"\x1b[{colour}m{text}\x1b[0m" if is_coloured and colour else text


def progress_line(found: "re.Match[str]", total: int | None, width: int, is_coloured: bool = False) -> str:
    """A bar, step, loss, tokens per second and estimated time left, in fewer than `width` (1 or more) columns: the rest
    is cut off.

    found: the match of a step's line of the log, with the groups step, loss, tokens per second, time left. total: steps
    of the run; None or 0 leaves out the bar. is_coloured: bar and step are green, the loss is bold, or red if it is
    no finite number, and the time left is cyan.
    """
    step, loss, tokens_per_second, time_left = found.groups()
    is_number = loss not in ("nan", "inf", "-inf")
    parts = [
        (f"step {step}", GREEN),
        (f"loss {float(loss):.4f}", BOLD if is_number else RED),
        (f"{float(tokens_per_second):,.0f} tokens/s", ""),
        (f"ETA {time_left}", CYAN),
    ]
    if total:
        filled = min(BAR_WIDTH, BAR_WIDTH * int(step) // total)
        parts[0] = f"[{'#' * filled}{'.' * (BAR_WIDTH - filled)}] step {step}/{total}", GREEN
    line, room = [], width - 1
    for text, colour in parts:
        shown = text[: max(room, 0)]
        line.append(painted(shown, colour, is_coloured and bool(shown)))
        room -= len(text) + 2
        if room <= 0:
            break
    return "  ".join(line)


class Screen:
    """A writer of a run's log to a stream. total: steps of the run; None or 0: taken from a line of the log, if one
    says it."""

    def __init__(self, stream: TextIO, total: int | None = None, environment: Mapping[str, str] = os.environ) -> None:
        self.stream, self.total = stream, total
        self._updates = is_terminal(stream, environment)
        self._has_colours = has_colours(stream, environment)
        self._last = ""

    def write(self, line: str) -> None:
        """Write a line of the log, with or without its newline; on a terminal a step's line as `progress_line` in place
        of the last step's, other lines above that."""
        line = line.rstrip("\n")
        if not self._updates:
            self.stream.write(f"{line}\n")
        elif found := STEP.match(line):
            width = shutil.get_terminal_size().columns
            self._last = progress_line(found, self.total, width, self._has_colours)
            self.stream.write(CLEAR_LINE + self._last)
        else:
            if length := LENGTH.search(line):
                self.total = self.total or int(length[1])
            self.stream.write(f"{CLEAR_LINE}{self._painted(line)}\n{self._last}")
        self.stream.flush()

    def _painted(self, line: str) -> str:
        colour = next((colour for begin, colour in LEVELS.items() if line.startswith(begin)), "")
        return painted(line, colour, self._has_colours)

    def close(self) -> None:
        """End the line of the last step, so that it stays and the next output begins a line of its own."""
        if self._last:
            self.stream.write("\n")
            self.stream.flush()
            self._last = ""
