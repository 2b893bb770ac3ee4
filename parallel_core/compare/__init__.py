"""The reasons why two runs differ: what a run records of a step, and the first difference between two runs' records."""

from parallel_core.compare.differences import Difference, differences
from parallel_core.compare.recorded import RECORD, Step, read_record, write_step

__all__ = ["RECORD", "Difference", "Step", "differences", "read_record", "write_step"]
