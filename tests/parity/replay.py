"""`python tests/parity/replay.py CASE_DIR [--nproc N] [flags]`: examples/gpt/compare_with_megatron.py by its test's name."""

import runpy
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "gpt" / "compare_with_megatron.py"

if __name__ == "__main__":
    runpy.run_path(str(SCRIPT), run_name="__main__")
