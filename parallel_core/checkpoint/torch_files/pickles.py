"""A pickle read without running any of it.

Unpickling calls what the pickle names. Here a name is answered by one of the few builders below, which only make
values of what they are given, by the name of a type, or by a stand-in that keeps its arguments; nothing that the pickle
names is imported. So names that nobody knows are as harmless as known ones, and objects of most classes can be read.
"""

import io
import pickle
import pickletools
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

STORAGES = {
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "DoubleStorage": "float64",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
}
"""torch's typed storage classes -> the type of their entries; an UntypedStorage has bytes."""

_TYPES = {"half": "float16", "float": "float32", "double": "float64", "long": "int64", "int": "int32"}
"""torch's other names of types -> ours."""


class StandIn:
    """An object of a class that is not imported: the class's name (`path`), the positional arguments it was made of,
    its state, and its items: (key, value) pairs of a mapping, entries of a list or set."""

    path = ""
    arguments: tuple[Any, ...]
    state: Any
    items: list[Any]
    """(key, value) pairs of a mapping, entries of a list or set."""

    def __new__(cls, *arguments: Any, **_: Any) -> "StandIn":
        """Make the object with its fields, also where a pickle builds it without calling its initialiser."""
        made = super().__new__(cls)
        made.arguments, made.state, made.items = arguments, None, []
        return made

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items.append((key, value))

    def append(self, value: Any) -> None:
        """Take an entry of a pickled subclass of list or set."""
        self.items.append(value)

    add = append

    def extend(self, values: Iterable[Any]) -> None:
        """Take several entries of a pickled subclass of list."""
        self.items.extend(values)

    def get(self, name: str) -> Any:
        """The field `name` of the object's state; None if the state has none, or is no dictionary."""
        return self.state.get(name) if isinstance(self.state, dict) else None


class TypeName(str):
    """The name of something in torch, such as a dtype, without "torch."."""

    __slots__ = ()


class Storage:
    """The stand-in for one of torch's storage classes, with the type of its entries."""

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype


class _Call:
    """A builder that a pickle may call; it has no attributes that a pickle could set."""

    __slots__ = ("_build",)

    def __init__(self, build: Callable[..., Any]) -> None:
        self._build = build

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._build(*arguments, **named)

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("a function has no state")


_BUILDERS = {
    "collections.OrderedDict": _Call(lambda *entries: OrderedDict(*entries)),
    "torch.device": _Call(lambda *place: ":".join(map(str, place))),
    "torch.Size": _Call(lambda sizes=(): tuple(sizes)),
    "builtins.set": _Call(lambda entries=(): set(entries)),
    "builtins.frozenset": _Call(lambda entries=(): frozenset(entries)),
    "torch.serialization._get_layout": _Call(str),
    "torch._utils._rebuild_parameter": _Call(lambda tensor, *_: tensor),
    "torch._utils._rebuild_parameter_with_state": _Call(lambda tensor, *_: tensor),
    "torch._tensor._rebuild_from_type_v2": _Call(
        lambda build, kind, arguments, *_: build(*arguments) if isinstance(build, _Call) else StandIn(*arguments)
    ),
}


class Unpickler(pickle.Unpickler):
    """The reader of one pickle, the bytes `data`. `tensor(storage, offset, shape, stride)` makes a tensor of an
    archive; `storage(id)` gives the storage that a persistent id names."""

    def __init__(self, data: bytes, storage: Callable[[Any], Any], tensor: Callable[..., Any]) -> None:
        super().__init__(io.BytesIO(data), encoding="utf-8")
        self._storage = storage
        self._tensor = _Call(lambda storage, offset, shape, stride, *_: tensor(storage, offset, shape, stride))

    def persistent_load(self, pid: Any) -> Any:
        return self._storage(pid)

    def find_class(self, module: str, name: str) -> Any:
        path = f"{module}.{name}"
        if path in ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor"):
            return self._tensor
        if path in _BUILDERS:
            return _BUILDERS[path]
        if module == "torch" and (name in STORAGES or name == "UntypedStorage"):
            return Storage(STORAGES.get(name, "uint8"))
        if module == "torch" and name.islower():
            return TypeName(_TYPES.get(name, name))
        return type(name.rpartition(".")[2] or "StandIn", (StandIn,), {"path": path})


def read_pickle(
    data: bytes, where: str, storage: Callable[[Any], Any] | None = None, tensor: Callable[..., Any] | None = None
) -> Any:
    """The object in a pickle, objects of unknown classes as `StandIn`s. storage(id) gives the storage that a persistent
    id names; tensor(storage, offset, shape, stride) makes a tensor; where one is None, a pickle that needs it is
    refused. Raises ValueError, naming the file `where`, if the pickle is refused or cannot be read."""

    def none_here(*_: Any) -> Any:
        raise pickle.UnpicklingError("tensors are not expected in it")

    try:
        _refuse_far_places(data)
        return Unpickler(data, storage or none_here, tensor or none_here).load()
    except Exception as error:  # a pickle can fail in any way
        if isinstance(error, ValueError) and where in str(error):
            raise
        raise ValueError(f"{where}: not a readable pickle ({type(error).__name__}: {error})") from error


def _refuse_far_places(data: bytes) -> None:
    """Raise an error if a memo's index exceeds the number of bytes before it, which no pickler writes: Python would
    make room for all places up to it."""
    for operation, place, byte in pickletools.genops(data):
        if operation.name in ("LONG_BINPUT", "PUT") and isinstance(place, int) and place > (byte or 0):
            raise pickle.UnpicklingError(f"place {place} at byte {byte}")
