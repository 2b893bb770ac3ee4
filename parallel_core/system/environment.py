"""This host's devices and its description, and reasons why this process cannot run MindSpore as it was started;
MindSpore is not imported."""

import os
import platform
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeVar

from parallel_core.findings import ConfigError, Finding

Default = TypeVar("Default")

PYTHONS = (3, 10), (3, 12)
"""The first and the last version of Python for which there is a MindSpore 2.10."""


def unfit_versions(python: tuple[int, ...] = sys.version_info[:2], numpy: str | None = None) -> Iterator[Finding]:
    """A finding if there is no MindSpore 2.10 for this version of Python, and one if numpy's is 2 or later. python:
    (major, minor). numpy: its version; None: the installed one's, if there is one."""
    if not PYTHONS[0] <= python <= PYTHONS[1]:
        first, last = (".".join(map(str, one)) for one in PYTHONS)
        rule = f"there is no MindSpore 2.10 for it; make an environment of Python {first} - {last}"
        yield Finding("Python", ".".join(map(str, python)), rule)
    numpy = _installed("numpy") if numpy is None else numpy
    if int(numpy.partition(".")[0] or 1) > 1:
        yield Finding("NumPy", numpy, "MindSpore's tensors break under it", "pip install 'numpy>=1.26,<2'")


@cache
def _installed(name: str) -> str:
    """The version of an installed package, "" if it is not installed. All of its metadata is parsed for it, which takes
    10 ms."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def other_launchers(environment: Mapping[str, str] = os.environ) -> Iterator[Finding]:
    """A finding if the environment tells that another launcher than msrun started this process: without msrun's
    MS_ROLE it has PyTorch's TORCHELASTIC_RUN_ID, or a WORLD_SIZE that is neither empty nor 1."""
    size = environment.get("WORLD_SIZE", "1")
    if "MS_ROLE" not in environment and ("TORCHELASTIC_RUN_ID" in environment or size not in ("", "1")):
        rule = "processes of torchrun, deepspeed or the like do not find each other in MindSpore"
        yield Finding("WORLD_SIZE", size, rule, "put `python -m mapping launch` before that command: msrun starts them")


def is_scheduler() -> bool:
    """Whether this process is msrun's scheduler, which runs the same script as the ranks and is no rank."""
    return os.environ.get("MS_ROLE") == "MS_SCHED"


def number_of(*names: str, default: Default) -> int | Default:
    """The whole number, at least 0, in the first of these environment variables that is neither missing nor empty;
    `default` without one. Raises ConfigError if its text is no such number."""
    name = next((name for name in names if os.environ.get(name)), "")
    if not name:
        return default
    text = os.environ[name]
    if not (text.isascii() and text.isdecimal()):
        rule = "is no whole number; msrun sets it (with --node_rank on several hosts)"
        raise ConfigError([Finding(name, text, rule, "start the ranks with msrun, or unset it")])
    return int(text)


PACKAGES = ("megatron-pynative", "mindspore", "numpy")
_PREFIXES = ("MS_", "MINDSPORE_", "ASCEND_", "HCCL_", "OMP_", "OPENBLAS_")


def described(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Name -> value of the environment that a run may depend on beside its flags: versions, this host's system and
    processors, and variables whose names begin as those of MindSpore, an Ascend, OpenMP and OpenBLAS do (MS_, ASCEND_,
    ...). No other variable: they may hold secrets."""
    versions = {name: _installed(name) or "not installed" for name in PACKAGES}
    system = f"{platform.system()} {platform.release()} {platform.machine()}"  # `platform()` starts a process
    host = {"python": platform.python_version(), "system": system, "processors": str(os.cpu_count())}
    return versions | host | {name: environment[name] for name in sorted(environment) if name.startswith(_PREFIXES)}


def has_ascend() -> bool:
    """Whether this host has an Ascend, whose driver makes /dev/davinci*, or a dry run (MS_SIMULATION_LEVEL is set)
    stands in for one."""
    return any(Path("/dev").glob("davinci*")) or "MS_SIMULATION_LEVEL" in os.environ


def is_on_cpu(asked: str | None) -> bool:
    """Whether a process is to compute on a CPU: as --device-target (`asked`) says; if that is None or empty, where
    `has_ascend` is False. MindSpore's context is not looked at."""
    return (asked or ("Ascend" if has_ascend() else "CPU")) == "CPU"
