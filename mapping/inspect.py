"""`python -m mapping inspect PATH`: shows a checkpoint, by its folder, or a data set, by its prefix."""

import sys
from collections.abc import Sequence
from pathlib import Path


def main(argv: Sequence[str]) -> int:
    """Show a data set if there is a file WORD.idx for one of the words (those that begin with - aside), else a
    checkpoint; return the exit code, or raise SystemExit for wrong arguments."""
    if any(not word.startswith("-") and Path(f"{word}.idx").is_file() for word in argv):
        from parallel_core.data.preprocess.command_line import main as of_data

        return of_data(["inspect", *argv])
    from parallel_core.checkpoint.inspect import main as of_checkpoint

    return of_checkpoint(list(argv))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
