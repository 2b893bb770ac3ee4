"""The entry point of `python -m parallel_core.data.preprocess`, which runs `command_line.main`."""

import sys

from parallel_core.data.preprocess.command_line import main

if __name__ == "__main__":
    sys.exit(main())
