"""Paths of the checkout and of the tests' recorded data."""

import json
import lzma
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
"""The root of the checkout."""

_ASSETS = ROOT / "tests" / "assets"


def asset(path: str) -> Path:
    """A file or folder of tests/assets; raises FileNotFoundError: what tests need is part of the repository."""
    found = _ASSETS / path
    if not found.exists():
        raise FileNotFoundError(f"{found}: tests/assets/README.md says what belongs there")
    return found


def recorded(path: str) -> Any:
    """The content of a JSON file of tests/assets, which is compressed if its name ends with .xz."""
    content = asset(path).read_bytes()
    return json.loads(lzma.decompress(content) if path.endswith(".xz") else content)
