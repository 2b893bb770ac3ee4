"""`python -m parallel_core.schedules`: another name of `plan schedule`."""

import sys

from parallel_core.schedules.command import main

if __name__ == "__main__":
    sys.exit(main())
