"""The layers and modules that are recomputed, as one value for both notations."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

from parallel_core.findings import Finding
from parallel_core.recompute import tables
from parallel_core.recompute.offload import OffloadSettings, offloaded_modules
from parallel_core.recompute.parts import Again, LayerParts, Part, is_within
from parallel_core.recompute.tables import Table, as_logged


class RecomputeSettings(OffloadSettings, Protocol):
    """The options of a RecomputeConfig that the plan reads."""

    recompute_granularity: str | None
    recompute_method: str | None
    recompute_num_layers: int | None
    recompute_modules: list[str] | None
    recompute_activation_function: bool
    recompute_activation_function_num_layers: int | None
    recompute_norm: bool
    recompute_norm_num_layers: int | None
    recompute_mla_up_proj: bool
    enable_recompute_layers_per_pp_rank: bool
    recompute: Any
    select_recompute: Any
    select_recompute_exclude: Any
    select_comm_recompute: Any
    select_comm_recompute_exclude: Any
    mp_comm_recompute: bool
    recompute_slice_activation: bool


class LayerRecompute(NamedTuple):
    """The recomputation of one layer: all of it (`full`), some `parts` or none; linears whose collectives do not run
    again (`kept_collectives`); modules that are `offloaded`; and parts whose output may be recomputed unasked
    (`droppable`)."""

    full: bool = False
    parts: tuple[Part, ...] = ()
    """The parts that are recomputed; none of them lies in another. Empty with `full`."""
    kept_collectives: frozenset[str] = frozenset()
    """Paths of linears whose tensor-parallel collectives do not run again where the linears do: outputs are kept."""
    offloaded: tuple[str, ...] = ()
    """Paths within the layer of modules whose saved activations lie in host memory."""
    droppable: tuple[Part, ...] = ()
    """Parts whose output may be recomputed even if the user did not ask for it."""

    @property
    def modules(self) -> tuple[str, ...]:
        """The names of the recomputed parts, as users write them."""
        return tuple(part.name for part in self.parts)

    @property
    def is_asked_for(self) -> bool:
        """Whether anything that the user asked for is computed again in this layer, or offloaded."""
        return self.full or bool(self.offloaded) or any(part not in self.droppable for part in self.parts)

    def dropping_outputs(self, there: LayerParts, norms: bool) -> "LayerRecompute":
        """A copy that recomputes the `droppable` parts, too, but for those that `outermost` leaves out. norms: whether
        norms are among them. there: the layer's parts."""
        dropped = {part.name for part in self.droppable if norms or part.flag != NORMS}
        return self._replace(parts=there.outermost({*self.modules, *dropped}))

    def offloads(self, path: str) -> bool:
        """Whether the module at `path` is one of the `offloaded` ones, or lies in one."""
        return any(is_within(path, module) for module in self.offloaded)

    @property
    def ways(self) -> dict[str, Again]:
        """Path of each recomputed part -> its way. A part with the way WHOLE has WITHOUT_OUTPUT if its `feeds` share a
        submodule with those of a recomputed part with the way OUTPUT."""
        made_again = {path for part in self.parts if part.again is Again.OUTPUT for path in part.feeds}
        return {
            part.path: Again.WITHOUT_OUTPUT if not part.again and made_again.intersection(part.feeds) else part.again
            for part in self.parts
        }


@dataclass(frozen=True)
class CellRecompute:
    """The recomputation of one cell (nn.Cell): the ways of its recomputed parts, linears whose collectives do not run
    again (`kept_collectives`), and `offloaded` modules. Paths are within the cell; its own path is empty."""

    ways: Mapping[str, Again] = field(default_factory=dict)
    """Path -> way of each part that is recomputed."""
    kept_collectives: frozenset[str] = frozenset()
    """Paths of linears whose tensor-parallel collectives do not run again where the linears do: outputs are kept."""
    offloaded: frozenset[str] = frozenset()
    """Paths of modules whose saved activations lie in host memory."""
    smallest_offloaded: int = 1
    """The number of elements from which on a saved tensor goes to host memory."""

    @classmethod
    def of(cls, asked: LayerRecompute, smallest_offloaded: int) -> "CellRecompute":
        """The recomputation of a layer's cell, from that of the layer (`full` is not read). smallest_offloaded: the
        fewest elements with which a saved activation of an offloaded module goes to host memory."""
        return cls(asked.ways, asked.kept_collectives, frozenset(asked.offloaded), smallest_offloaded)

    def within(self, module: str) -> "CellRecompute":
        """The recomputation of the cell at `module` in this one, with paths from there; without entries for the path
        `module` itself, on which the outer cell acts."""
        start = f"{module}."
        kept, offloaded = (
            frozenset(path.removeprefix(start) for path in paths if path.startswith(start))
            for paths in (self.kept_collectives, self.offloaded)
        )
        ways = {path.removeprefix(start): way for path, way in self.ways.items() if path.startswith(start)}
        return replace(self, ways=ways, kept_collectives=kept, offloaded=offloaded)


@dataclass(frozen=True)
class ChunkRecompute:
    """The recomputation of the layers of one chunk. Neighbouring full ones run again together, in groups of at most
    `group_size`; a group is larger only by `joined` layers (positions), which take a result of the layer before. With
    `slices_inputs` a tensor-parallel rank keeps only its slice of a group's input, where it can be cut evenly."""

    layers: tuple[LayerRecompute, ...]
    group_size: int = 1
    slices_inputs: bool = False
    smallest_offloaded: int = 1
    """The number of elements from which on a saved tensor goes to host memory."""
    joined: frozenset[int] = frozenset()
    """Positions in the chunk of layers that take a result of the layer before; if that is full, they run with it."""

    def groups(self) -> list[range]:
        """Positions of the layers: full ones that are recomputed together as one range, every other layer alone."""
        starts: list[range] = []
        for position, layer in enumerate(self.layers):
            last = starts[-1] if starts else range(0)
            goes_with_it = len(last) < self.group_size or position in self.joined
            if layer.full and last and self.layers[last.start].full and goes_with_it:
                starts[-1] = range(last.start, position + 1)
            else:
                starts.append(range(position, position + 1))
        return starts

    def runs(self) -> list[range]:
        """Positions of layers in ranges: full ones that are recomputed together, and neighbours that are not full."""
        found: list[range] = []
        for group in self.groups():
            if found and not (self.layers[group.start].full or self.layers[found[-1].start].full):
                found[-1] = range(found[-1].start, group.stop)
            else:
                found.append(group)
        return found


@dataclass(frozen=True)
class RecomputePlan:
    """Tables [chunk][stage] of numbers of layers, the first ones of a chunk: all there are (`counts`); those that run
    again whole (`full`); by pattern or name, those in which modules run again (`select`, `flagged`), and those whose
    second run gathers norms' outputs even if not `runs_collectives_again` (--no-mp-comm-recompute; `communication`);
    `..._exclude`: exceptions from these. group_size, slices_inputs: as in `ChunkRecompute`."""

    counts: Table
    full: Table
    """The number of layers that are recomputed whole, but for the parts in `select_exclude`; `select` and `flagged` do
    not act on them."""
    select: dict[str, Table]
    """Pattern of modules -> the number of layers in which those are recomputed."""
    flagged: dict[str, Table]
    """Value of --recompute-modules -> the number of layers in which that module is recomputed."""
    communication: dict[str, Table]
    """Pattern of norms -> the number of layers whose second run gathers their outputs with --no-mp-comm-recompute."""
    select_exclude: dict[str, Table]
    communication_exclude: dict[str, Table]
    """Pattern -> the number of layers in which modules are left out of `communication`; `select_exclude`: of `full`,
    `select` and `flagged`."""
    group_size: int = 1
    slices_inputs: bool = False
    runs_collectives_again: bool = True
    offload: Callable[[int], tuple[str, ...]] = lambda index: ()
    """Position of a layer in its chunk -> paths of the modules whose saved activations lie in host memory."""
    smallest_offloaded: int = 1
    by_stage: bool = False
    """Whether the user gave a setting of `BY_STAGE`, so that the log shows the normalised form."""

    @classmethod
    def of(cls, settings: RecomputeSettings, counts: Table) -> "RecomputePlan":
        """The plan for `counts` [chunk][stage] layers. Raises ValueError for a setting that module `tables` refuses."""
        by_stage = any(getattr(settings, name) is not None for name in BY_STAGE)
        select, communication = (
            tables.tables_of(getattr(settings, name), counts, default) for name, default in PATTERNS.items()
        )
        select_exclude, communication_exclude = (
            tables.tables_of(getattr(settings, f"{name}_exclude") or {}, counts, ()) for name in PATTERNS
        )
        return cls(
            counts,
            tables.table_of(settings.recompute, counts) if by_stage else _full(settings, counts),
            {**(select if by_stage else {}), **_activations(settings, counts)},
            _flagged(settings, counts),
            communication,
            select_exclude,
            communication_exclude,
            group_size=(settings.recompute_num_layers or 1) if settings.recompute_method == "uniform" else 1,
            slices_inputs=settings.recompute_slice_activation,
            runs_collectives_again=settings.mp_comm_recompute,
            offload=partial(offloaded_modules, settings),
            smallest_offloaded=settings.smallest_offloaded,
            by_stage=by_stage,
        )

    def of_layers(self, layers: Iterable[LayerRecompute], joined: frozenset[int] = frozenset()) -> ChunkRecompute:
        """The recomputation of a chunk from that of its layers, in order. joined: positions of those that take a result
        of the layer before, and so are full where that is."""
        asked: list[LayerRecompute] = []
        for position, layer in enumerate(layers):
            asked.append(asked[-1] if position in joined and asked[-1].full else layer)
        return ChunkRecompute(tuple(asked), self.group_size, self.slices_inputs, self.smallest_offloaded, joined)

    def layer(self, stage: int, chunk: int, index: int, there: LayerParts) -> LayerRecompute:
        """The recomputation of the layer at position `index` (from 0) of a stage's chunk. there: its parts."""

        def named(patterns: dict[str, Table], of_name: Callable[[str], set[str]] = there.matching) -> set[str]:
            here = (pattern for pattern, table in patterns.items() if index < table[chunk][stage])
            return {name for pattern in here for name in of_name(pattern)}

        whole, left_out = index < self.full[chunk][stage], named(self.select_exclude)
        full = whole and not left_out
        asked = named(self.select) | named(self.flagged, there.flagged)
        parts = () if full else there.rest(left_out) if whole else there.outermost(asked - left_out)
        kept = frozenset[str]()
        if not self.runs_collectives_again and (full or parts):
            again = named(self.communication) - named(self.communication_exclude)
            kept = there.collectives - {there.linear_after[norm] for norm in again & there.linear_after.keys()}
        if whole:
            return LayerRecompute(full, parts, kept)
        taken = left_out | {part.name for part in parts}
        droppable = tuple(part for part in there.parts if part.unasked and part.name not in taken)
        return LayerRecompute(full, parts, kept, self.offload(index), droppable)

    def log_lines(self) -> Iterator[str]:
        """Lines with the normalised tables, as MindFormers logs them; none unless the user gave `recompute`,
        `select_recompute` or `select_comm_recompute`."""
        if not self.by_stage:
            return
        yield f"Formative layer_recompute: {self.full}"
        yield f"Formative select_recompute: {as_logged(self.select)}"
        yield f"Formative select_comm_recompute: {as_logged(self.communication)}"
        if self.select_exclude:
            yield f"Formative select_recompute_exclude: {as_logged(self.select_exclude)}"
        if self.communication_exclude:
            yield f"Formative select_comm_recompute_exclude: {as_logged(self.communication_exclude)}"

    def layer_lines(self, layers: Iterable[tuple[int, LayerRecompute]]) -> Iterator[str]:
        """A line, as MindFormers logs it, for each of these (number, layer) that is recomputed, whole or in parts; none
        unless the user gave `recompute`, `select_recompute` or `select_comm_recompute`."""
        if not self.by_stage:
            return
        for number, layer in layers:
            if layer.full:
                yield f"Set full recompute at layer {number}"
            elif layer.modules:
                yield f"Set select recompute on at layer {number}: {', '.join(layer.modules)}"


NORMS, ACTIVATION = "layernorm", r"mlp\.activation"
"""The modules of --recompute-norm, as a value of --recompute-modules; those of --recompute-activation-function, as a
pattern."""

PATTERNS = {
    "select_recompute": (r"feed_forward\.mul", r"feed_forward\.w1\.activation\.silu"),
    "select_comm_recompute": (r".*\.norm",),
}
"""Setting with patterns -> the patterns that apply where it is given without any."""

BY_STAGE = ("recompute", "select_recompute", "select_comm_recompute")
"""Names of the settings that are lists by stage, MindFormers' notation."""


def _full(settings: RecomputeSettings, counts: Table) -> Table:
    """The number of layers [chunk][stage] that Megatron's flags recompute whole."""
    if settings.recompute_granularity != "full":
        return tables.none_of(counts)
    if settings.recompute_method == "uniform":
        return tables.all_of(counts)
    return _first(settings, settings.recompute_num_layers or 0, counts)


def _first(settings: RecomputeSettings, layers: int, counts: Table) -> Table:
    """The table of the first `layers` of each chunk, or with --enable-recompute-layers-per-pp-rank of each stage."""
    if settings.enable_recompute_layers_per_pp_rank:
        return tables.dealt([layers] * len(counts[0]), counts)
    return tables.first_of(layers, counts)


def _flagged(settings: RecomputeSettings, counts: Table) -> dict[str, Table]:
    """Value of --recompute-modules -> number of layers [chunk][stage], from Megatron's and MindSpeed's flags."""
    chosen: dict[str, Table] = {}
    if settings.recompute_granularity == "selective":
        chosen |= dict.fromkeys(settings.recompute_modules or ("core_attn",), tables.all_of(counts))
    if settings.recompute_norm:
        chosen[NORMS] = _after_whole(settings, settings.recompute_norm_num_layers, counts)
    if settings.recompute_mla_up_proj:
        chosen["mla_up_proj"] = tables.all_of(counts)
    return chosen


def _activations(settings: RecomputeSettings, counts: Table) -> dict[str, Table]:
    if not settings.recompute_activation_function:
        return {}
    return {ACTIVATION: _after_whole(settings, settings.recompute_activation_function_num_layers, counts)}


def _after_whole(settings: RecomputeSettings, layers: int | None, counts: Table) -> Table:
    """The table [chunk][stage] of a MindSpeed flag that counts `layers` behind the fully recomputed ones; None: all."""
    full = (settings.recompute_num_layers or 0) if settings.recompute_granularity == "full" else 0
    return tables.all_of(counts) if layers is None else _first(settings, full + layers, counts)


def wrong_settings(
    settings: RecomputeSettings, counts: Table, flags: dict[str, str], there: LayerParts
) -> Iterator[Finding]:
    """Findings about MindFormers' settings that `tables` refuses for `counts` [chunk][stage], or whose patterns match
    no part (of collectives: no norm) or are malformed. flags: setting -> the user's name; there: the model's parts."""
    for name in (*BY_STAGE, *(f"{pattern}_exclude" for pattern in PATTERNS)):
        value = getattr(settings, name)
        try:
            by_pattern = name != "recompute"
            found = tables.tables_of(value, counts, ()) if by_pattern else {"": tables.table_of(value, counts)}
            if by_pattern and not isinstance(value, dict | str):
                found or tables.table_of(value, counts)
        except ValueError as error:
            yield Finding(flags[name], value, str(error), "change it")
            continue
        parts = there.parts
        if name.startswith("select_comm"):
            parts = tuple(part for part in parts if part.flag == NORMS)
        for pattern in found if by_pattern else ():
            yield from _unknown_pattern(flags[name], pattern, LayerParts(parts))


def _unknown_pattern(flag: str, pattern: str, there: LayerParts) -> Iterator[Finding]:
    fix, escaped = "change the pattern", re.sub(r"(?<!\\)\.(?![*+?])", r"\.", pattern)
    try:
        names = ", ".join(part.name for part in there.parts)
        rule = None if there.matching(pattern) else f"matches no module; those of a layer are {names}"
        if rule and there.matching(escaped):
            rule, fix = "matches no module: names are separated by an escaped full stop", f"write {escaped}"
    except ValueError as error:
        rule = str(error)
    if rule:
        yield Finding(flag, pattern, rule, fix)
