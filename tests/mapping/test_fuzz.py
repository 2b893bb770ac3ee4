"""Reading any command line ends in a config and a list of errors, never in a traceback."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from mapping.explain import as_json, as_text
from mapping.flags import BY_NAME, MAPPED
from mapping.reading import read
from tests.support.mapping.lines import GOOD, line, reading

JUNK = [
    "",
    "x",
    "-1",
    "0",
    "1e9",
    "1e400",
    "nan",
    "[",
    "{}",
    "None",
    "--",
    "1,2",
    "[[1],[2]]",
    "9" * 20,
    "-5.5",
    "[0]*9999999999",
    "(1)",
]
NAMES = [name for name, row in BY_NAME.items() if row.status == MAPPED]


@pytest.mark.parametrize("seed", range(100))
def test_a_damaged_line_is_read_to_its_end(seed):
    """A command line with words replaced, removed or added at random is read without an exception, and both answers of
    `explain` are made."""
    chance = random.Random(seed)
    words = line()
    for _ in range(chance.randint(1, 4)):
        position = chance.randrange(len(words))
        damage = chance.choice(["replace", "remove", "add"])
        if damage == "replace":
            words[position] = chance.choice(JUNK)
        elif damage == "remove":
            del words[position]
        else:
            words += [chance.choice(NAMES), chance.choice(JUNK)]
    found = read(words, world_size=chance.choice([1, 2, 6, 64]))
    assert as_text(found) and as_json(found)


@pytest.mark.parametrize("size", ["100000000", "9" * 20])
def test_no_size_is_laid_out_before_it_is_judged(size):
    """A size of 10^8 and more costs less than 20 MB: no list of that length is made before it is refused."""
    flags = [name for name in NAMES if name.endswith("-size") or "stage" in name or "layers" in name]
    tracemalloc.start()
    for name in flags:
        reading(f"{name} {size}")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20e6 and len(flags) > 20


@pytest.mark.slow
def test_no_single_flag_breaks_the_reading():
    """Each mapped flag with the value -1 is read without an exception."""
    for name in NAMES:
        assert as_json(reading(f"{name} -1")), name


def test_the_line_that_is_damaged_is_good():
    """The command line that the tests damage has no errors itself."""
    assert reading().errors == [] and "--num-layers" in GOOD
