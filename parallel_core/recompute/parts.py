"""Parts of a layer that may run again in the backward pass, as the blocks that have them say it."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from types import MappingProxyType
from typing import Any, NamedTuple

Sizes = dict[str, int]
"""Path of a submodule -> bytes that it saves for the backward of one micro-batch on a rank."""


class Again(IntEnum):
    """Ways to recompute a part, in the order in which their effects on a layer's kept bytes are worked out. WHOLE: the
    part runs again from its input. WITHOUT_OUTPUT: like WHOLE, and the linear behind the part does not keep the part's
    output. OUTPUTS: like WHOLE, and the operator that takes the part's several outputs does not keep them. OUTPUT: the
    part's graph is kept; its output alone is computed again, and not kept by the linear behind it."""

    WHOLE = 0
    """The part runs again from its input when its backward comes."""
    WITHOUT_OUTPUT = 1
    """The part runs again from its input, and the linear after it does not keep the part's output either, but asks for
    it."""
    OUTPUTS = 2
    """The part runs again from its input, and the operator that takes its several outputs, such as queries, keys and
    values, does not keep them, but asks for them."""
    OUTPUT = 3
    """The part's graph is kept as without recomputation; only its output is computed again, when the linear after it
    asks."""


@dataclass(frozen=True)
class Part:
    """A part of a block, or of a layer, that may run again in the backward. Paths are within the block, or the layer.
    again: its way; runs: submodules that run again with it (empty: the one at `path`); holders: submodules that save
    its input; feeds: submodules that save its output; begins: whether its input is the layer's normed hidden states;
    flag: its value of --recompute-modules; name: the user's path of it, aliases: further ones; unasked: whether a CPU
    may recompute its output without being asked; norm: path of the norm whose output it takes, if any."""

    path: str
    """Path of the part, and the name by which its cell runs it (`run_part`); empty for the whole block."""
    again: Again = Again.WHOLE
    runs: tuple[str, ...] = ()
    """Paths of the submodules that run again with the part; empty: the one at `path`."""
    holders: tuple[str, ...] = ()
    """Paths of the submodules that save the part's input, the first of which keeps it for all."""
    feeds: tuple[str, ...] = ()
    """Paths of the submodules that save the part's output as their input."""
    begins: bool = False
    """Whether the part's input is the layer's normed hidden states."""
    input_bytes: Callable[[Any], int] | None = None
    """MicroBatch -> bytes of the part's input on a rank (of `UpProjections`, of its output); None: those of the normed
    hidden states if it `begins`, else those that the first holder keeps."""
    flag: str | None = None
    """The value of --recompute-modules that names the part; None if none does."""
    aliases: tuple[str, ...] = ()
    """Further paths by which MindFormers' lists name the part."""
    unasked: bool = False
    """Whether, on a CPU, the part's output may be computed again even if the user did not ask for it."""
    name: str = ""
    """The path by which users name the part, within the layer."""
    norm: str | None = None
    """Path of the norm whose output is the part's input, if that norm may be recomputed."""

    def within(self, module: str, called: str, norm: str | None) -> "Part":
        """The same part with paths from the layer on instead of from its block on. module: the block's path in the
        layer; called: the user's name for it; norm: path of the norm whose output a part that `begins` takes."""
        paths = (self.runs or (self.path,), self.holders, self.feeds)
        runs, holders, feeds = (tuple(_join(module, path) for path in each) for each in paths)
        path, name, norm = _join(module, self.path), _join(called, self.path), norm if self.begins else None
        return replace(self, path=path, name=name, runs=runs, holders=holders, feeds=feeds, norm=norm)

    @property
    def is_in_vain(self) -> bool:
        """Whether the part has the way OUTPUT and no submodule saves its output (`feeds` is empty), so that to compute
        the output again saves nothing."""
        return self.again is Again.OUTPUT and not self.feeds

    def covers(self, path: str) -> bool:
        """Whether the submodule at `path` is one of `runs`, or lies in one. For a part with paths from the layer on
        (`within`), whose `runs` are never empty."""
        return any(is_within(path, run) for run in self.runs)

    def kept(self, kept: Sizes, normed: int, micro_batch: Any, asked: Collection[str]) -> Sizes:
        """The bytes by path that the layer keeps once this part is recomputed, from those (`kept`) that it keeps
        without that. normed: bytes of the normed hidden states, the part's input if it `begins`. asked: paths of all
        parts that are recomputed; read only by kinds of parts whose bytes depend on others."""
        if self.again is Again.OUTPUT:
            return {**kept, **dict.fromkeys(self.feeds, 0)}
        rest = {path: size for path, size in kept.items() if not self.covers(path)}
        if not self.holders:
            return rest
        first, *others = self.holders
        of_input = self.input_bytes(micro_batch) if self.input_bytes else normed if self.begins else kept[first]
        return {**rest, first: of_input, **dict.fromkeys(others, 0)}

    def kept_by_second_run(self, kept: Sizes, micro_batch: Any) -> int:
        """Bytes that the part's second run saves until its backward has run: with its output, as far as `feeds` keep
        it, and without its input. 0 with the way OUTPUT. kept: bytes by path that the layer keeps without
        recomputation."""
        if self.again is Again.OUTPUT:
            return 0
        of_input = self.input_bytes(micro_batch) if self.input_bytes else sum(kept[path] for path in self.holders)
        inside = sum(size for path, size in kept.items() if self.covers(path))
        return inside - of_input + sum(kept[path] for path in self.feeds)


class LayerParts(NamedTuple):
    """The parts of one layer; its linears with tensor-parallel collectives that need not run again (paths); and path of
    a norm -> path of the linear that gathers its output (`linear_after`)."""

    parts: tuple[Part, ...]
    collectives: frozenset[str] = frozenset()
    """Paths of the linears whose tensor-parallel collectives need not run again (--no-mp-comm-recompute)."""
    linear_after: Mapping[str, str] = MappingProxyType({})
    """Path of a norm -> path of the linear that gathers its output (sequence parallelism)."""

    @classmethod
    def of_all(cls, layers: "Iterable[LayerParts]") -> "LayerParts":
        """The parts of several layers, each name once, in the order in which layers first have them; of equal names the
        last layer's part. `collectives` and `linear_after` are left empty."""
        return cls(tuple({part.name: part for layer in layers for part in layer.parts}.values()))

    @property
    def flags(self) -> set[str]:
        """The values of --recompute-modules that name a part of this layer."""
        return {part.flag for part in self.parts if part.flag}

    def matching(self, pattern: str) -> set[str]:
        r"""Names of the parts that a pattern of MindFormers' lists matches. The pattern is regular expressions with
        `\.` between them, as many as the part's name, or one of its aliases, has pieces between dots; each must match
        the whole of its piece. Raises ValueError if one of them is no regular expression."""
        try:
            expressions = [re.compile(one) for one in pattern.split(r"\.")]
        except (re.error, OverflowError) as error:
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
        """The parts with these names, in the layer's order, without those that are recomputed in vain (`is_in_vain`)
        and those whose path lies below that of another of them."""
        asked = {*names}
        chosen = [part for part in self.parts if part.name in asked and not part.is_in_vain]
        return tuple(p for p in chosen if not any(is_within(p.path, other.path) for other in chosen if other is not p))

    def rest(self, left_out: Collection[str]) -> tuple[Part, ...]:
        """The `outermost` of the layer's parts without those named in `left_out`, those that would run one of them
        again, and those whose path lies below that of one of them."""
        kept = [part.path for part in self.parts if part.name in left_out]
        return self.outermost(
            part.name
            for part in self.parts
            if not any(part.covers(path) or is_within(part.path, path) for path in kept)
        )


def _join(module: str, path: str) -> str:
    return ".".join(filter(None, (module, path)))


def is_within(path: str, module: str) -> bool:
    """Whether `path` is the path `module` or lies below it; everything lies below the empty path."""
    return not module or f"{path}.".startswith(f"{module}.")


def _matches(expressions: list[re.Pattern[str]], children: list[str]) -> bool:
    return len(expressions) == len(children) and all(
        expression.fullmatch(child) for expression, child in zip(expressions, children, strict=True)
    )
