"""What an unknown name may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from parallel_core.findings import Finding


def nearest(name: str, known: Sequence[str]) -> list[str]:
    """Known names that begin with this one, then those that are written much alike."""
    name = f"--{name.lstrip('-')}" if name.startswith("-") else name
    longer = [full for full in known if full.startswith(name)]
    return [*dict.fromkeys((*longer[:3], *difflib.get_close_matches(name, known, n=3, cutoff=0.75)))]


def unknown(name: str, known: Sequence[str], source: str = "") -> Finding:
    """The finding that there is no such name, with the nearest that there are."""
    near = nearest(name, known)
    rule = "there is no such flag" if name.startswith("-") else "there is no such key"
    return Finding(name, None, rule, f"did you mean {', '.join(near)}?" if near else "remove it", source)
