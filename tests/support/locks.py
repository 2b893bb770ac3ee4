"""Another process that holds a folder of checkpoints."""

import os
from pathlib import Path

from tests.support.warm import Process

HOLD = """
import sys, time
from pathlib import Path
from parallel_core.checkpoint.lock import FolderLock
FolderLock(Path(sys.argv[1])).take(lambda line: None)
print("held", flush=True)
time.sleep(600)
"""


def hold(root: Path, **environment: str) -> Process:
    """Start a process that holds the folder of checkpoints until it is killed; returns once it holds it."""
    ours, theirs = os.pipe()
    process = Process(["-c", HOLD, root], os.environ | environment, Path.cwd(), {1: theirs, 2: 2})
    os.close(theirs)
    with open(ours) as said:
        assert said.readline() == "held\n"
    return process
