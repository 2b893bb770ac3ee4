"""Continue a text with a model from a checkpoint.

    python examples/gpt/generate.py --load output --prompt "def " --max-new-tokens 100 --temperature 0.8
    msrun --worker_num 2 examples/gpt/generate.py --load output --prompt "def " --tensor-model-parallel-size 2

The same as `python -m mapping generate`.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pynative.generation.__main__ import main

if __name__ == "__main__":
    main()
