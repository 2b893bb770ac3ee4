"""The reasons why two runs differ: what a run records of a step, the first difference between two runs' records, and
the first checkpoint in which their weights differ."""

from parallel_core.compare.differences import Difference, differences
from parallel_core.compare.recorded import RECORD, Step, read_record, write_step

__all__ = ["RECORD", "Difference", "Step", "differences", "read_record", "write_step"]
