"""`python -m parallel_core.data.preprocess`."""

import sys

from parallel_core.data.preprocess.command_line import main

if __name__ == "__main__":
    sys.exit(main())
