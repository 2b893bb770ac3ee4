"""`python tests/parity/replay.py CASE_DIR [--nproc N] [flags]`: examples/gpt/compare_with_megatron.py, which here also
takes a case of tests/assets, whose weights lie there in another form."""

import runpy
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "gpt" / "compare_with_megatron.py"

if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    from tests.support.goldens import STORED, unpack

    with TemporaryDirectory() as folder:
        for place, argument in enumerate(sys.argv):
            if (Path(argument) / STORED).exists():
                sys.argv[place] = str(unpack(Path(argument).resolve(), Path(folder) / Path(argument).resolve().name))
        runpy.run_path(str(SCRIPT), run_name="__main__")
