"""Parts of a layer that may run again in the backward pass, as the blocks that have them say it."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from types import MappingProxyType
from typing import Any, NamedTuple

Sizes = dict[str, int]
"""Path of a submodule -> bytes of one micro-batch that a rank keeps of it."""


class Again(IntEnum):
    """Ways to recompute a part, in the order in which parts of one layer change what the layer keeps."""

    WHOLE = 0
    """The part keeps its input, and runs again when its backward comes."""
    WITHOUT_OUTPUT = 1
    """Recompute as WHOLE, and the linear after it does not keep its output either, but asks for it."""
    OUTPUTS = 2
    """Recompute as WITHOUT_OUTPUT, of several outputs that one operator takes."""
    OUTPUT = 3
    """The part is recorded as ever, and the linear after it asks for its output instead of keeping it."""


@dataclass(frozen=True)
class Part:
    """A part of a block, or of a layer, that may run again. Paths are within the block, or the layer."""

    path: str
    """Its place, and the name by which its cell runs it; empty for the whole block."""
    again: Again = Again.WHOLE
    runs: tuple[str, ...] = ()
    """Submodules that run again; by default the one at `path`."""
    holders: tuple[str, ...] = ()
    """Submodules that have the part's input, the first of which keeps it for all."""
    feeds: tuple[str, ...] = ()
    """Submodules that keep what the part gives."""
    begins: bool = False
    """Whether its input is the normed hidden states."""
    input_bytes: Callable[[Any], int] | None = None
    """MicroBatch -> bytes of its input, if what the first holder keeps of a micro-batch is another number."""
    flag: str | None = None
    """Its value of --recompute-modules."""
    aliases: tuple[str, ...] = ()
    """Paths by which MindFormers' lists name it."""
    unasked: bool = False
    """Whether a CPU drops its output although nobody asks for it."""
    name: str = ""
    """The path by which users name it, if that is another."""
    norm: str | None = None
    """The norm whose output it begins with, if that may be recomputed."""

    def within(self, module: str, called: str, norm: str | None) -> "Part":
        """The same of the block `module` of a layer, which users name `called`."""
        paths = (self.runs or (self.path,), self.holders, self.feeds)
        runs, holders, feeds = (tuple(_join(module, path) for path in each) for each in paths)
        path, name, norm = _join(module, self.path), _join(called, self.path), norm if self.begins else None
        return replace(self, path=path, name=name, runs=runs, holders=holders, feeds=feeds, norm=norm)

    @property
    def is_in_vain(self) -> bool:
        """Whether nothing is won by making its output again."""
        return self.again is Again.OUTPUT and not self.feeds

    def covers(self, path: str) -> bool:
        """Whether what stands at a path runs again with it."""
        return any(is_within(path, run) for run in self.runs)

    def kept(self, kept: Sizes, normed: int, micro_batch: Any, asked: Collection[str]) -> Sizes:
        """The bytes that the layer keeps if this part and those of the paths `asked` are recomputed. normed: bytes of
        the hidden states with which the part may begin."""
        if self.again is Again.OUTPUT:
            return {**kept, **dict.fromkeys(self.feeds, 0)}
        rest = {path: size for path, size in kept.items() if not self.covers(path)}
        if not self.holders:
            return rest
        first, *others = self.holders
        of_input = self.input_bytes(micro_batch) if self.input_bytes else normed if self.begins else kept[first]
        return {**rest, first: of_input, **dict.fromkeys(others, 0)}

    def kept_by_second_run(self, kept: Sizes, micro_batch: Any) -> int:
        """Bytes that the second run keeps until it was run backwards, and gives, beside its input. Of a norm or an
        activation nothing but the result is recomputed, while one operator needs it."""
        if self.again is Again.OUTPUT:
            return 0
        of_input = self.input_bytes(micro_batch) if self.input_bytes else sum(kept[path] for path in self.holders)
        inside = sum(size for path, size in kept.items() if self.covers(path))
        return inside - of_input + sum(kept[path] for path in self.feeds)


class LayerParts(NamedTuple):
    """The parts of one layer, in its order, and its tensor-parallel collectives."""

    parts: tuple[Part, ...]
    collectives: frozenset[str] = frozenset()
    """Paths of linears that have one."""
    linear_after: Mapping[str, str] = MappingProxyType({})
    """Norm -> the linear that gathers its output, if one does."""

    @classmethod
    def of_all(cls, layers: "Iterable[LayerParts]") -> "LayerParts":
        """The parts of several layers, each once, in the order of a layer."""
        return cls(tuple({part.name: part for layer in layers for part in layer.parts}.values()))

    @property
    def flags(self) -> set[str]:
        """The values of --recompute-modules that name one of them."""
        return {part.flag for part in self.parts if part.flag}

    def matching(self, pattern: str) -> set[str]:
        r"""Names of the parts that a pattern names: regular expressions with `\.` between them, each of which must
        match the whole of a child's name. Raises ValueError (`re.error` is one, too) for no regular expression."""
        try:
            expressions = [re.compile(one) for one in pattern.split(r"\.")]
        except re.error as error:
            raise ValueError(f"is no regular expression: {error}") from error
        return {
            part.name
            for part in self.parts
            if any(_matches(expressions, name.split(".")) for name in (part.name, *part.aliases))
        }

    def flagged(self, flag: str) -> set[str]:
        """Names of the parts that a value of --recompute-modules names."""
        return {part.name for part in self.parts if part.flag == flag}

    def outermost(self, names: Iterable[str]) -> tuple[Part, ...]:
        """The names among these that lie in no other of them. A norm before experts is none: router and dispatch keep
        what it gives, too."""
        asked = {*names}
        chosen = [part for part in self.parts if part.name in asked and not part.is_in_vain]
        return tuple(p for p in chosen if not any(is_within(p.path, other.path) for other in chosen if other is not p))

    def rest(self, left_out: Collection[str]) -> tuple[Part, ...]:
        """The parts of the layer that can be recomputed, without these, the parts around them and the parts in them."""
        kept = [part.path for part in self.parts if part.name in left_out]
        return self.outermost(
            part.name
            for part in self.parts
            if not any(part.covers(path) or is_within(part.path, path) for path in kept)
        )


def _join(module: str, path: str) -> str:
    return ".".join(filter(None, (module, path)))


def is_within(path: str, module: str) -> bool:
    """Whether a path is a module's, or lies in it; everything lies in the empty path."""
    return not module or f"{path}.".startswith(f"{module}.")


def _matches(expressions: list[re.Pattern[str]], children: list[str]) -> bool:
    return len(expressions) == len(children) and all(
        expression.fullmatch(child) for expression, child in zip(expressions, children, strict=True)
    )
