"""`python -m parallel_core.topology`: another name of `plan groups`."""

import sys

from parallel_core.topology.command import main

if __name__ == "__main__":
    sys.exit(main())
