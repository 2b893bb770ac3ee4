"""Comparison of two runs: what a run records of a step, the differences between two records of a step, and, by
bisection, the first checkpoint in which the runs' weights differ."""

from parallel_core.compare.differences import Difference, differences
from parallel_core.compare.recorded import RECORD, Step, read_record, write_step

__all__ = ["RECORD", "Difference", "Step", "differences", "read_record", "write_step"]
