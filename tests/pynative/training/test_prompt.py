"""An error at Python's interactive prompt after a job was set up."""

import os
import subprocess
import sys

from tests.support.assets import ROOT

LINES = """
from parallel_core.config import ParallelConfig
from pynative.training.utils import set_parallel_context
set_parallel_context(ParallelConfig())
1 / 0
print("the next line")
"""


def test_an_error_at_the_prompt_ends_no_process(tmp_path):
    """At the prompt a wrong line leaves the process alive; in a script it ends the job:
    `tests/pynative/collectives/test_death.py`."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GLOG_v": "3"}
    done = subprocess.run(
        [sys.executable, "-i"], input=LINES, capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert done.returncode == 0 and "the next line" in done.stdout
    assert "ZeroDivisionError" in done.stderr and "rank 0 failed" not in done.stderr
