"""Another process that holds a folder of checkpoints."""

import os
import subprocess
import sys
from pathlib import Path

HOLD = """
import sys, time
from pathlib import Path
from parallel_core.checkpoint.lock import FolderLock
FolderLock(Path(sys.argv[1])).take(lambda line: None)
print("held", flush=True)
time.sleep(600)
"""


def hold(root: Path, **environment: str) -> subprocess.Popen:
    """The process, which has the folder until it is killed."""
    command = [sys.executable, "-c", HOLD, str(root)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | environment)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process
