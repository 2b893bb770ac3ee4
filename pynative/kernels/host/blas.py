"""The set-up of every OpenBLAS that the process has loaded, numpy's among them: the number of its threads, and the
kernels for the widest vectors of this CPU. A loaded file counts as an OpenBLAS if its path has "openblas" and ".so" in
it."""

import ctypes
import os
import platform
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from parallel_core.system.blas import Decision, cpu_flags, decide

CORE_VARIABLE = "OPENBLAS_CORETYPE"
"""OpenBLAS's own variable: the core whose kernels it uses, read when it selects them."""

_AFFIXES = tuple((prefix, suffix) for prefix in ("", "scipy_") for suffix in ("", "64_", "_64", "64"))


class _LoadedObject(ctypes.Structure):
    """The first fields of dl_iterate_phdr's struct dl_phdr_info."""

    _fields_ = (
        ("address", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("headers", ctypes.c_void_p),
        ("count", ctypes.c_uint16),
        ("loads", ctypes.c_ulonglong),
    )


_Visitor = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(_LoadedObject), ctypes.c_size_t, ctypes.c_void_p)


def _loads() -> int:
    """The number of libraries that this process has ever loaded, as the loader counts; 0 where it does not count."""
    iterate = getattr(ctypes.CDLL(None), "dl_iterate_phdr", None)
    found = [0]

    def visit(loaded: Any, size: int, _: None) -> int:
        found[0] = loaded.contents.loads
        return 1  # the first one tells

    if iterate is not None:
        iterate(_Visitor(visit), None)
    return found[0]


def _libraries() -> tuple[ctypes.CDLL, ...]:
    """Every OpenBLAS that this process has loaded."""
    return _libraries_after(_loads())


@lru_cache(maxsize=1)
def _libraries_after(loads: int) -> tuple[ctypes.CDLL, ...]:
    """Every OpenBLAS that the process has loaded, looked up once for each value of `loads`: the list of a large process
    takes milliseconds to read."""
    try:
        with open("/proc/self/maps") as maps:
            lines = [line for line in maps if "openblas" in line.lower() and ".so" in line]
    except OSError:  # only Linux has /proc
        return ()
    paths = sorted({line.split(maxsplit=5)[-1].strip() for line in lines})
    return tuple(library for path in paths if (library := _opened(path)) is not None)


def _opened(path: str) -> ctypes.CDLL | None:
    """The loaded library of this path; None if its file was removed since ("... (deleted)")."""
    try:
        return ctypes.CDLL(path)
    except OSError:
        return None


def _function(library: ctypes.CDLL, name: str) -> Any:
    """A function of OpenBLAS's interface, by whatever prefix and suffix the library was built with; None without it."""
    names = (f"{prefix}{name}{suffix}" for prefix, suffix in _AFFIXES)
    return next((getattr(library, each) for each in names if hasattr(library, each)), None)


def set_blas_threads(count: int) -> bool:
    """Tell every loaded OpenBLAS to use `count` threads. Returns False if none is found that can be told, as where
    there is no /proc/self/maps."""
    setters = _thread_setters()
    for setter in setters:
        setter(count)
    return bool(setters)


def _thread_setters() -> list[Callable[[int], None]]:
    setters = [_function(library, "openblas_set_num_threads") for library in _libraries()]
    return [setter for setter in setters if setter is not None]


def _core(library: ctypes.CDLL) -> str:
    """The name of the core whose kernels a library uses; "" when it does not say."""
    corename = _function(library, "openblas_get_corename")
    if corename is None:
        return ""
    corename.restype = ctypes.c_char_p
    return str(corename().decode())


def cores() -> list[str]:
    """The name of the core whose kernels each loaded OpenBLAS uses; "" of one that does not say."""
    return [_core(library) for library in _libraries()]


def _select(library: ctypes.CDLL, core: str) -> None:
    """Have a library select the kernels of `core`: again, as at load, by its environment variable. No product may be
    running.

    `gotoblas_dynamic_quit` forgets the table of kernels, `gotoblas_dynamic_init` chooses one (OpenBLAS,
    driver/others/dynamic.c). A library without them, or built for one CPU, keeps what it has.
    """
    if not (hasattr(library, "gotoblas_dynamic_quit") and hasattr(library, "gotoblas_dynamic_init")):
        return
    os.environ[CORE_VARIABLE] = core
    try:
        library.gotoblas_dynamic_quit()
        library.gotoblas_dynamic_init()
    finally:
        del os.environ[CORE_VARIABLE]


def _decision(library: ctypes.CDLL) -> Decision:
    return decide(platform.machine(), cpu_flags(), _core(library))


def select_fastest_core() -> None:
    """Give every loaded OpenBLAS the kernels of this CPU's widest vectors where it is known to have chosen slower ones
    (`decide`) and can choose again. numpy may have been loaded long before, but no product may be running. With
    OPENBLAS_CORETYPE in the environment nothing is changed."""
    if CORE_VARIABLE in os.environ:
        return
    for library in _libraries():
        decision = _decision(library)
        if decision.core is not None:
            _select(library, decision.core)


def notice() -> str | None:
    """A line for the log where a loaded OpenBLAS is known to multiply matrices slower than this CPU could (`decide`),
    with the way out; else None."""
    for library in _libraries():
        decision = _decision(library)
        if decision.core is None:
            continue
        cure = f"set {CORE_VARIABLE}={decision.core} before Python starts"
        if CORE_VARIABLE in os.environ:
            cure = f"unset {CORE_VARIABLE}, which is {os.environ[CORE_VARIABLE]!r}, or {cure}"
        return (
            f"OpenBLAS uses its {_core(library)} kernels, on this CPU about {decision.times_slower:.1f} times slower "
            f"than {decision.core}: {cure}"
        )
    return None
