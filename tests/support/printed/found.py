"""The outcome of an item that a document prints: one of five, or missing, and its words."""

from __future__ import annotations

from typing import NamedTuple

ACTS, NOTHING, REFUSED, READER, MISSING = "acts", "no-op", "refused", "reader", "missing"


class Found(NamedTuple):
    """An outcome and its detail."""

    outcome: str
    """`acts`; `no-op`, with a reason; `refused`, with a reason; `reader`: prose, or a name that the document leaves to
    its reader; `missing`: unknown here."""
    detail: str = ""
    """The config field and its value, the name in this project, or the reason."""
