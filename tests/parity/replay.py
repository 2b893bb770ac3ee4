"""`python tests/parity/replay.py CASE_DIR [--nproc N] [flags]`: compare_with_megatron.py under this name."""

import runpy
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "gpt" / "compare_with_megatron.py"

if __name__ == "__main__":
    runpy.run_path(str(SCRIPT), run_name="__main__")
