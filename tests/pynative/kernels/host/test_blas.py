"""numpy's OpenBLAS: what it chose is corrected in a process that already uses it."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from parallel_core.blas import cpu_flags, usable_cores

ROOT = Path(__file__).resolve().parents[4]
CORES = usable_cores(platform.machine(), cpu_flags())
needs_a_choice = pytest.mark.skipif(len(CORES) < 2, reason="no x86-64 with AVX: there is nothing to choose between")

SLOW_LIBRARY = """
import os
os.environ["OPENBLAS_CORETYPE"] = "Prescott"  # what a library chooses on a CPU that it does not know
import numpy as np
a, b = (np.random.default_rng(0).standard_normal((300, 300), np.float32) for _ in range(2))
before = a @ b
{variable}
import mindspore
from pynative import kernels
from pynative.kernels.host import blas
kernels.use("host")
after = a @ b
exact = a.astype(np.float64) @ b.astype(np.float64)
error = max(abs(after - exact).max(), abs(before - exact).max())
print(blas.cores(), error < 1e-4, os.environ.get("OPENBLAS_CORETYPE"), blas.notice(), sep="|")
"""


UNSET = "del os.environ['OPENBLAS_CORETYPE']"
CANNOT_CHOOSE = """from pynative.kernels.host import blas
for library in blas._libraries():  # importing has corrected them
    blas._select(library, "Prescott")
blas._select = print"""


def outcome(variable: str) -> list[str]:
    """What a process prints whose numpy computed with the oldest kernels; `variable`: what it does to its variable."""
    done = subprocess.run(
        [sys.executable, "-c", SLOW_LIBRARY.format(variable=variable)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT), "GLOG_v": "3"},
    )
    return done.stdout.strip().splitlines()[-1].split("|")


@needs_a_choice
def test_a_loaded_numpy_gets_the_fast_kernels():
    """As in a notebook: numpy was loaded, chose the wrong kernels and computed with them."""
    cores, is_right, variable, notice = outcome(UNSET)
    assert "Prescott" not in cores and CORES[0] in cores
    assert (is_right, variable, notice) == ("True", "None", "None")


@needs_a_choice
def test_the_users_variable_counts_and_one_line_says_what_it_costs():
    cores, is_right, variable, notice = outcome("")
    assert "Prescott" in cores and (is_right, variable) == ("True", "Prescott")
    assert (
        "unset OPENBLAS_CORETYPE" in notice and f"OPENBLAS_CORETYPE={CORES[0]}" in notice and "times slower" in notice
    )


@needs_a_choice
def test_a_library_that_cannot_choose_again_is_reported():
    """Built for one CPU, or with hidden functions: the line names the variable to set."""
    cores, _, _, notice = outcome(f"{UNSET}\n{CANNOT_CHOOSE}")
    assert "Prescott" in cores and f": set OPENBLAS_CORETYPE={CORES[0]} before Python starts" in notice
