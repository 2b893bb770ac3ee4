"""numpy's OpenBLAS, which may have chosen slow kernels for this CPU: corrected in a process that already uses it."""

import io
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from parallel_core.system.blas import cpu_flags, usable_cores

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
blas._select = print"""

IMPORTS = """
import importlib, os, pkgutil, runpy
os.environ["OPENBLAS_CORETYPE"] = "Prescott"
import numpy as np
del os.environ["OPENBLAS_CORETYPE"]
blas = runpy.run_path("pynative/kernels/host/blas.py")  # as a module it would import the packages around it

def settings():
    threads = [blas["_function"](library, "openblas_get_num_threads")() for library in blas["_libraries"]()]
    large = np.empty(1 << 26, np.uint8).ctypes.data
    heap = next(line for line in open("/proc/self/maps") if "[heap]" in line).split()[0].split("-")
    return threads[0], blas["cores"]()[0], int(heap[0], 16) <= large < int(heap[1], 16)

seen = [settings()]
import mindspore, mapping, pynative
for package in (mapping, pynative):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
seen.append(settings())
pynative.kernels.use("host")
print(*seen[1], *settings(), seen[0] == seen[1], sep="|")
"""


def printed(script: str, **environment: str) -> list[str]:
    """The fields, separated by "|", of the last line that a Python process with this script prints."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "GLOG_v": "3"} | environment
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT, env=environment
    )
    return done.stdout.strip().splitlines()[-1].split("|")


def outcome(variable: str) -> list[str]:
    """The fields printed by a process in which OpenBLAS has chosen its oldest kernels and `variable`, a statement, was
    run."""
    return printed(SLOW_LIBRARY.format(variable=variable))


@needs_a_choice
def test_importing_leaves_the_process_as_it_is():
    """Importing the kernels changes neither BLAS's threads and kernels nor malloc's limits; selecting them does."""
    imported, used = ["2", "Prescott", "False"], ["1", CORES[0], "True"]
    assert printed(IMPORTS, OPENBLAS_NUM_THREADS="2") == [*imported, *used, "True"]


@needs_a_choice
def test_a_loaded_numpy_gets_the_fast_kernels():
    """numpy was loaded, has chosen slow kernels and computed with them, as in a notebook: selecting ours switches to
    the fast ones."""
    cores, is_right, variable, notice = outcome(UNSET)
    assert "Prescott" not in cores and CORES[0] in cores
    assert (is_right, variable, notice) == ("True", "None", "None")


@needs_a_choice
def test_the_users_variable_counts_and_one_line_says_what_it_costs():
    """A slow OPENBLAS_CORETYPE set by the user stays, and the notice names the faster value and the cost."""
    cores, is_right, variable, notice = outcome("")
    assert "Prescott" in cores and (is_right, variable) == ("True", "Prescott")
    assert (
        "unset OPENBLAS_CORETYPE" in notice and f"OPENBLAS_CORETYPE={CORES[0]}" in notice and "times slower" in notice
    )


@needs_a_choice
def test_a_library_that_cannot_choose_again_is_reported():
    """An OpenBLAS built for one CPU, or with hidden functions, stays as it is: a printed line says which
    OPENBLAS_CORETYPE to set."""
    cores, _, _, notice = outcome(f"{UNSET}\n{CANNOT_CHOOSE}")
    assert "Prescott" in cores and f": set OPENBLAS_CORETYPE={CORES[0]} before Python starts" in notice


def test_a_library_whose_file_was_removed_is_passed_over(monkeypatch):
    """A loaded OpenBLAS whose file was removed or replaced on disk since is no error."""
    from pynative.kernels.host import blas

    maps = "7f00-7f01 r-xp 00000000 00:01 1    /gone/libopenblas.so.0 (deleted)\n"
    monkeypatch.setattr("builtins.open", lambda path: io.StringIO(maps))
    assert blas._libraries_after.__wrapped__(0) == ()
