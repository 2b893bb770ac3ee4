"""The outcome of an item: one of five, or missing, and the words for it."""

from __future__ import annotations

from typing import NamedTuple

ACTS, NOTHING, REFUSED, READER, MISSING = "acts", "no-op", "refused", "reader", "missing"


class Found(NamedTuple):
    """An outcome, and to what it leads."""

    outcome: str
    """`acts`; `no-op`, said with a reason; `refused`, with a reason;
    `reader`: prose, or a name that the document leaves to its reader; `missing`: nothing here knows it."""
    detail: str = ""
    """The config field and its value, the name here, or the reason."""
