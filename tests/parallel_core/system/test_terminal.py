"""`Screen`, the log of a run: plain lines in a file, one line for all steps and colours on a terminal."""

import io
import re

import pytest

from parallel_core.system.terminal import STEP, Screen, has_colours, progress_line
from tests.support.terminal import screen

LINE = (
    "INFO - Epoch: 0, Step: {step}, Loss: {loss}, Finite_grads: True, Samples: 8, Tokens/s: 1234.5, MFU: 1.00%, "
    "Memory: 9 MB, ETA: 1d 02:03:04, Time: 5.00 ms"
)
LOG = ["INFO - Training: step 1 to 40, from initial values", LINE.format(step=10, loss="2.5"), "WARNING - look out"]
LOG += [LINE.format(step=20, loss="nan"), "INFO - Training success!"]


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def shown(stream: io.StringIO, environment: dict[str, str]) -> str:
    """All that the lines of `LOG` write to the stream in this environment, control characters included."""
    told = Screen(stream, environment=environment)
    for line in LOG:
        told.write(line)
    told.close()
    return stream.getvalue()


def test_elsewhere_lines_are_lines():
    """A file, a pipe, and a terminal that cannot move its cursor (TERM=dumb) get the log's lines unchanged."""
    plain = "\n".join(LOG) + "\n"
    assert shown(io.StringIO(), {}) == plain == shown(Terminal(), {"TERM": "dumb"})


@pytest.mark.parametrize("environment", [{}, {"NO_COLOR": ""}])
def test_a_terminal_has_one_line_for_all_steps(environment):
    """A terminal shows other lines above and the newest step in one line with a bar of all steps and the time left;
    warnings and NaN are coloured unless NO_COLOR is set."""
    written = shown(Terminal(), environment)
    assert ("\x1b[33mWARNING - look out\x1b[0m" in written) == (not environment)
    assert ("\x1b[31mloss nan\x1b[0m" in written) == (not environment)
    lines = screen(re.sub(r"\x1b\[\d+m", "", written))
    assert lines[:3] == [LOG[0], LOG[2], LOG[4]]
    assert lines[3].startswith("[############............] step 20/40  loss nan  1,234 tokens/s  ETA 1d 02")


@pytest.mark.parametrize("width", [10, 40, 60, 200])
def test_a_line_is_no_wider_than_the_terminal(width):
    """The line of steps is shorter than the terminal's width; colours add no visible characters and each is closed."""
    found = STEP.match(LINE.format(step=20, loss="2.5"))
    plain, coloured = (progress_line(found, 40, width, is_coloured) for is_coloured in (False, True))
    assert len(plain) < width and re.sub(r"\x1b\[\d+m", "", coloured) == plain
    assert coloured.count("\x1b[0m") * 2 == coloured.count("\x1b[")


def test_no_color_has_no_colours_whatever_its_value():
    """NO_COLOR switches colours off whatever its value, also empty (no-color.org)."""
    assert has_colours(Terminal(), {}) and not has_colours(Terminal(), {"NO_COLOR": ""})
