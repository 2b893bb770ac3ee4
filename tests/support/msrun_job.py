"""The program of each rank of test_death's msrun jobs; its arguments are a mode and the path of a file for
process ids."""

import os
import sys
import time

from parallel_core.system.environment import is_scheduler

if is_scheduler():
    sys.exit(0)

import mindspore as ms
import numpy as np

from pynative.collectives import connect
from tests.support.end_together import EndTogether


def main(mode: str, notes: str) -> None:
    """Do three all-reduces, write the process id to `notes`.<rank>, then fail on rank 1 as the mode says, or do three
    more."""
    with EndTogether(connect(timeout_minutes=1)) as backend:
        for step in range(6):
            if step == 3:
                with open(f"{notes}.{backend.rank}", "w") as file:
                    file.write(str(os.getpid()))
                if backend.rank == 1:
                    misbehave(mode)
            backend.world.all_reduce(ms.Tensor(np.ones(1000, np.float32)))
    print("all steps done")


def misbehave(mode: str) -> None:
    """Fail as the mode says: "raise" an error, "wait" for an hour, or go on."""
    if mode == "raise":
        raise KeyError("the root of it all")
    if mode == "wait":
        time.sleep(3600)


if __name__ == "__main__":
    main(*sys.argv[1:])
