"""Outcomes of the documents' blocks that hold neither code nor configuration."""

from __future__ import annotations

from tests.support.printed.blocks import Block
from tests.support.printed.found import ACTS, READER, Found

TEXTS = {
    ("000", "3"): Found(READER, "an error of the earlier system's operator"),
    ("001", "2"): Found(ACTS, "parallel_core/recompute/plan.py, read by its test"),
    ("003", "0"): Found(ACTS, "examples/gpt"),
    ("003", "13"): Found(ACTS, "pynative/training/callbacks/log.py, read by test_user_script.py"),
    ("004", "4"): Found(READER, "advice: which stage is faster"),
    ("004", "5"): Found(READER, "advice: which stage needs less memory"),
}


def text_found(document: str, block: Block) -> Found:
    """The outcome of a text block, by document and number, from `TEXTS`."""
    return TEXTS[document, block.number]
