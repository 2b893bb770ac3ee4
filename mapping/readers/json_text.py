"""JSON as documents print it: `//` comments, a bare `auto`, commas at the end, perhaps no outer braces."""

from __future__ import annotations

import json
import re
from typing import Any

_COMMENT_OR_AUTO = re.compile(r'("(?:\\.|[^"\\\n])*")|//[^\n]*|\b(auto)\b')
_LAST_COMMA = re.compile(r'("(?:\\.|[^"\\\n])*")|,(?=\s*(?:[}\]]|\Z))')


def loads(text: str) -> Any:
    """The value of a text; raises ValueError where it is no JSON even so."""
    plain = _COMMENT_OR_AUTO.sub(lambda found: found[1] or ('"auto"' if found[2] else ""), text)
    plain = _LAST_COMMA.sub(lambda found: found[1] or "", plain).strip()
    return json.loads(f"{{{plain}}}" if plain.startswith('"') else plain)
