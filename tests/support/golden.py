"""Where the data recorded from Megatron-Core are."""

import os
from pathlib import Path

import pytest


def golden(name: str) -> Path:
    """The folder `name` of the golden data: under $MEGATRON_GOLDEN, or ../shared/golden. Skips the test without it."""
    root = Path(os.environ.get("MEGATRON_GOLDEN") or Path(__file__).resolve().parents[3] / "shared" / "golden")
    folder = root / name
    if not folder.is_dir():
        reason = f"{folder} is missing: set MEGATRON_GOLDEN to the folder of data recorded from Megatron-Core"
        pytest.skip(reason, allow_module_level=True)
    return folder
