"""Where the checkout and the recorded data of the tests are."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The checkout."""

_ASSETS = ROOT / "tests" / "assets"


def asset(path: str) -> Path:
    """A file or folder of tests/assets; raises FileNotFoundError: what tests need is part of the repository."""
    found = _ASSETS / path
    if not found.exists():
        raise FileNotFoundError(f"{found}: tests/assets/README.md says what belongs there")
    return found
