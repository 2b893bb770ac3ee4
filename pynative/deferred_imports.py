"""Parts of MindSpore that training does not use are loaded when they are touched, not with `import mindspore`.

MindSpore's start imports its data pipeline, its profiler, scipy and pillow: a fifth of the memory and a quarter of the
time of its import. From `install` on, that import gets stand-ins for `DEFERRED`, which are taken away again where it
ends, so that a later `import` of such a package is an ordinary one. What stays are names that MindSpore's own modules
took from stand-ins, and attributes like `mindspore.dataset`: they import the package where they are used. A package
that is there already is left alone; one that is used before that import has ended, as another version of MindSpore may
do, or another thread, is imported then and there. When the process ends, MindSpore asks its data pipeline and its
profiler to clean up: of those that were never loaded, something that does nothing is asked (`_NeverLoaded`).
"""

import atexit
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

DEFERRED = ("PIL", "mindspore.dataset", "mindspore.profiler", "scipy")
ASKED_AT_EXIT = ("mindspore.dataset.engine.iterators", "mindspore.profiler")


def deferred() -> list[str]:
    """What an import of MindSpore can do without now: not the profiler if the environment's options start it."""
    wanted = {"mindspore.profiler"} if os.environ.get("MS_PROFILER_OPTIONS") else set()
    return [name for name in DEFERRED if name not in wanted and name not in sys.modules]


class _Name:
    """A name that MindSpore's start took from a stand-in; used like what it stands for: object, function or class."""

    def __init__(self, module: str, name: str) -> None:
        self._place = (module, name)

    def _found(self) -> Any:
        module, name = self._place
        _loaded(module)
        return getattr(__import__(module, fromlist=[name]), name)  # which imports it if it is a module in that one

    def __getattr__(self, name: str) -> Any:
        return getattr(self._found(), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._found()(*args, **kwargs)

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, self._found())

    def __subclasscheck__(self, subclass: type) -> bool:
        return issubclass(subclass, self._found())

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (self._found(),)


class _StandIn(ModuleType):
    """A module that gives names without being loaded; after MindSpore's start, those of the module."""

    def __init__(self, name: str, finder: "_StandIns") -> None:
        super().__init__(name)
        self._finder = finder

    def __getattr__(self, name: str) -> Any:
        if name in _VALUES or not self._finder.package_of(self.__name__):
            return getattr(_loaded(self.__name__), name)
        if name.startswith("__"):
            raise AttributeError(name)
        return _Name(self.__name__, name)

    def _replaced(self) -> ModuleType:
        """The module, for somebody who uses it: nothing stands in for its package any more."""
        package = self._finder.package_of(self.__name__)
        self._finder.packages = [each for each in self._finder.packages if each != package]
        _forget_stand_ins(self._finder)
        return import_module(self.__name__)


_VALUES = ("__all__", "__version__")
"""Of a module's own names those that nothing can stand in for; the others are the import's, which asks for them."""


def _loaded(name: str) -> ModuleType:
    """The module of this name, even while stand-ins are given."""
    found = sys.modules.get(name)
    return found._replaced() if isinstance(found, _StandIn) else import_module(name)


class _StandIns(MetaPathFinder, Loader):
    """Finds stand-ins for some packages and all that lies in them, if they are installed."""

    def __init__(self, packages: Sequence[str]) -> None:
        self.packages = packages

    def package_of(self, name: str) -> str | None:
        """The deferred package that a module lies in, or is."""
        return next((package for package in self.packages if f"{name}.".startswith(f"{package}.")), None)

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        """A stand-in's; None for what is not deferred or not there."""
        package = self.package_of(fullname)
        is_there = package and (package != fullname or PathFinder.find_spec(fullname, path))
        return ModuleSpec(fullname, self, is_package=True) if is_there else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The stand-in."""
        return _StandIn(spec.name, self)

    def exec_module(self, module: ModuleType) -> None:
        """A stand-in runs nothing."""


@contextmanager
def stand_ins(packages: Sequence[str]) -> Iterator[None]:
    """Within it, an import of one of these packages gives a stand-in."""
    finder = _StandIns(packages)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        finder.packages = ()
        sys.meta_path.remove(finder)
        _forget_stand_ins(finder)


def _forget_stand_ins(finder: _StandIns) -> None:
    """Those of packages that the finder defers no more."""
    for name, module in [*sys.modules.items()]:
        if isinstance(module, _StandIn) and not finder.package_of(name):
            sys.modules.pop(name, None)


def look_up_when_asked(package: ModuleType) -> None:
    """What a package has of stand-ins become attributes that are looked up when somebody asks for them."""
    kept = {name: value for name, value in vars(package).items() if isinstance(value, _Name | _StandIn)}

    def look_up(name: str) -> Any:
        if name not in kept:
            raise AttributeError(f"module '{package.__name__}' has no attribute '{name}'")
        value = kept[name]
        found = _loaded(value.__name__) if isinstance(value, _StandIn) else value._found()
        vars(package)[name] = found
        return found

    for name in kept:
        delattr(package, name)
    package.__getattr__ = look_up  # type: ignore[method-assign]


class _NeverLoaded(ModuleType):
    """Is asked to clean up in place of a module that was never loaded."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda: self


def _ask_nothing_of_what_is_not_there() -> None:
    for name in ASKED_AT_EXIT:
        sys.modules.setdefault(name, _NeverLoaded(name))


def _ask_again() -> None:
    for name in ASKED_AT_EXIT:
        if isinstance(sys.modules.get(name), _NeverLoaded):
            del sys.modules[name]


class _Deferring(Loader):
    """Runs MindSpore's own loader while there are stand-ins."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the own loader does."""
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Handlers at exit run last in, first out: MindSpore's stand between these two."""
        assert module.__spec__
        module.__spec__.loader = module.__loader__ = self.loader
        atexit.register(_ask_again)
        with stand_ins(deferred()):
            self.loader.exec_module(module)
        atexit.register(_ask_nothing_of_what_is_not_there)
        look_up_when_asked(module)


class _MindSporeFinder(MetaPathFinder):
    """Finds MindSpore, to be loaded without what is deferred."""

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        """MindSpore's own, with another loader."""
        if fullname != "mindspore":
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec and spec.loader:
            spec.loader = _Deferring(spec.loader)
        return spec


def install() -> None:
    """The first import of MindSpore, if it is still to come, defers `DEFERRED`."""
    if "mindspore" not in sys.modules:
        sys.meta_path.insert(0, _MindSporeFinder())
