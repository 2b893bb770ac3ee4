"""Readers of notations: shares of --split, blends of --data-path and patterns of layers, for rules and data sets."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from parallel_core.findings import ConfigError, Finding

Blend = tuple[list[str], list[float] | None]
"""Prefixes of data sets, and their weights; None: weights by their sizes."""


def split_shares(text: str) -> list[float]:
    """The shares in a text, 1 to 3 numbers for train, valid and test, apart by commas, semicolons, slashes, quotes or
    blanks: [90.0, 8.0, 2.0] from "90,8,2". Raises ConfigError for any other text, as one with a sign or an exponent,
    and for shares that are all 0."""
    numbers = re.findall(r"[.0-9]+", text)
    readable = re.fullmatch(r"[.0-9,;/\s'\"]*", text) and all(re.fullmatch(r"\d+\.?\d*|\.\d+", n) for n in numbers)
    shares = [float(number) for number in numbers] if readable else []
    if not 1 <= len(shares) <= 3 or not sum(shares):
        rule = "must be one to three shares, not negative and not all 0, such as 969,30,1"
        raise ConfigError([Finding("--split", text, rule, "change it")])
    return shares


def parse_blend(words: Sequence[str], flag: str = "--data-path") -> Blend:
    """(prefixes, weights) of the data sets that a flag's words name: `PREFIX ...`, without weights (None), or `WEIGHT
    PREFIX WEIGHT PREFIX ...` with finite weights above 0. Raises ConfigError, which names `flag`, for any other
    words."""
    numbers = [_is_number(word) for word in words]
    if words and not any(numbers):
        return [word.strip() for word in words], None
    if not words or numbers != [True, False] * (len(words) // 2):
        rule = "must give prefixes, or a weight before every prefix (a prefix that is a number can be written ./1)"
        raise ConfigError([Finding(flag, " ".join(words), rule, "change it")])
    weights = [float(word) for word in words[::2]]
    if not all(0 < weight < float("inf") for weight in weights):
        raise ConfigError([Finding(flag, " ".join(words), "weights must be above 0", "change them")])
    return [word.strip() for word in words[1::2]], weights


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def wrong_pattern(pattern: Any, layers: int, zero: str, one: str) -> Iterator[str]:
    """The rules, as texts, that a pattern of layers breaks: a number (every so many-th layer) must be at least 1, a
    list must have a 0 or a 1 for each of `layers` layers. zero, one: the words for what 0 and 1 mean, in the texts."""
    if isinstance(pattern, list) and len(pattern) != layers:
        yield f"has {len(pattern)} entries, must have --num-layers {layers}"
    if isinstance(pattern, list) and any(entry not in (0, 1) for entry in pattern):
        yield f"entries must be 0 ({zero}) or 1 ({one})"
    if isinstance(pattern, int) and pattern < 1:
        yield "must be at least 1"
