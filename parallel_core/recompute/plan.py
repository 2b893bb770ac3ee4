"""Which layers and modules are computed again, as one value for both notations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

from parallel_core.findings import Finding
from parallel_core.recompute import tables
from parallel_core.recompute.modules import (
    ACTIVATION,
    DEFAULT_COMMUNICATION,
    DEFAULT_SELECT,
    FIRST_LINEAR,
    LINEAR_AFTER,
    MEGATRON_MODULES,
    MODULES,
    NORMS,
    OUTPUT_DROPPED,
    LayerKind,
    matching,
    outermost,
    rest_of_layer,
)
from parallel_core.recompute.offload import WHOLE_LAYER, OffloadSettings, offloaded_modules
from parallel_core.recompute.tables import Table, as_logged


class RecomputeSettings(OffloadSettings, Protocol):
    """What a RecomputeConfig says."""

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
    """What is computed again of one layer."""

    full: bool = False
    modules: tuple[str, ...] = ()
    """Paths within the layer; none of them lies in another."""
    kept_collectives: frozenset[str] = frozenset()
    """Linears whose tensor-parallel collectives are not run again: what they gave is kept."""
    offloaded: tuple[str, ...] = ()
    """Paths within the layer of modules that keep what they keep in host memory."""
    droppable: tuple[str, ...] = ()
    """Modules whose output may be made again although nobody asked for it: none of those that are asked for."""

    @property
    def is_asked_for(self) -> bool:
        """Whether the user wants anything of this layer computed again, or offloaded."""
        return self.full or bool({*self.modules} - {*self.droppable} or self.offloaded)

    def dropping_outputs(self, kept: Iterable[str] = ()) -> LayerRecompute:
        """The same where norms and an activation together take a hundredth of a layer's time, while their outputs are a
        third of what it keeps; without those of the modules `kept`."""
        dropped = {*self.droppable} - {*kept}
        return self._replace(modules=outermost({*self.modules, *dropped}))

    def of_layer(self, kind: LayerKind) -> LayerRecompute:
        """What of it such a layer has. What the norm before experts gives is kept by router and dispatch as well, so
        that nothing is won by making it again."""
        absent = {*MODULES} - {*kind.modules}
        if kind.has_experts:
            absent |= {LINEAR_AFTER["pre_mlp_layernorm"], "mlp.linear_fc2", "pre_mlp_layernorm"}
        modules, droppable = (
            tuple(module for module in named if module not in absent) for named in (self.modules, self.droppable)
        )
        kept = self.kept_collectives - absent
        return self._replace(modules=modules, droppable=droppable, kept_collectives=kept)

    def offloads(self, path: str) -> bool:
        """Whether what a module keeps lies in host memory."""
        return any(module == WHOLE_LAYER or f"{path}.".startswith(f"{module}.") for module in self.offloaded)

    @property
    def without_output(self) -> frozenset[str]:
        """Those of `modules` whose result is dropped as well. The first linear of a feed-forward block is computed
        again together with the activation, whose result it is then."""
        dropped = OUTPUT_DROPPED.intersection(self.modules)
        return dropped | {FIRST_LINEAR} if {FIRST_LINEAR, *ACTIVATION} <= {*self.modules} else dropped


@dataclass(frozen=True)
class ChunkRecompute:
    """What is computed again of a chunk's layers."""

    layers: tuple[LayerRecompute, ...]
    """Of each layer of the chunk, in order."""
    group_size: int = 1
    """Neighbours that are computed again together, from the input of the first."""
    slices_inputs: bool = False
    """Whether of the input of such a group a tensor-parallel rank keeps its part only."""
    smallest_offloaded: int = 1
    """Elements of the smallest tensor that goes to host memory, of modules that are offloaded."""

    def groups(self) -> list[range]:
        """The positions of layers that are computed again together, and of those that are not, alone."""
        starts: list[range] = []
        for position, layer in enumerate(self.layers):
            last = starts[-1] if starts else range(0)
            if layer.full and last and self.layers[last.start].full and len(last) < self.group_size:
                starts[-1] = range(last.start, position + 1)
            else:
                starts.append(range(position, position + 1))
        return starts


@dataclass(frozen=True)
class RecomputePlan:
    """Tables [chunk][stage] of how many layers, the first ones, are computed again."""

    counts: Table
    """Layers of each chunk and stage."""
    full: Table
    """Whole layers; these beat modules."""
    select: dict[str, Table]
    """Pattern of modules -> layers."""
    communication: dict[str, Table]
    """Pattern of modules whose collectives are run again -> layers."""
    select_exclude: dict[str, Table]
    communication_exclude: dict[str, Table]
    """What is left out of the two."""
    group_size: int = 1
    slices_inputs: bool = False
    runs_collectives_again: bool = True
    offload: Callable[[int], tuple[str, ...]] = lambda index: ()
    """Position of a layer in its chunk -> modules that keep what they keep in host memory."""
    smallest_offloaded: int = 1
    """Elements."""
    by_stage: bool = False
    """Whether the user asked by lists for stages, whose normalised form the log shows."""

    @classmethod
    def of(cls, settings: RecomputeSettings, counts: Table) -> RecomputePlan:
        """The plan for stages with `counts` layers. Raises ValueError where `wrong_settings` has a finding."""
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
            {**(select if by_stage else {}), **_select(settings, counts)},
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

    def chunk(self, stage: int, chunk: int) -> ChunkRecompute:
        """Of one of a stage's chunks."""
        layers = tuple(self._layer(stage, chunk, index) for index in range(self.counts[chunk][stage]))
        return ChunkRecompute(layers, self.group_size, self.slices_inputs, self.smallest_offloaded)

    def _layer(self, stage: int, chunk: int, index: int) -> LayerRecompute:
        def named(patterns: dict[str, Table]) -> set[str]:
            here = (pattern for pattern, table in patterns.items() if index < table[chunk][stage])
            return {module for pattern in here for module in matching(pattern)}

        whole, left_out = index < self.full[chunk][stage], named(self.select_exclude)
        full = whole and not left_out
        modules = rest_of_layer(left_out) if whole else outermost(named(self.select) - left_out)
        modules = () if full else modules
        kept = frozenset[str]()
        if not self.runs_collectives_again and (full or modules):
            again = named(self.communication) - named(self.communication_exclude)
            kept = COLLECTIVES - {LINEAR_AFTER[norm] for norm in again & LINEAR_AFTER.keys()}
        if whole:
            return LayerRecompute(full, modules, kept)
        droppable = tuple(module for module in (*NORMS, *ACTIVATION) if module not in {*left_out, *modules})
        return LayerRecompute(full, modules, kept, self.offload(index), droppable)

    def log_lines(self) -> Iterator[str]:
        """The normalised tables, if the user wrote any."""
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
        """Which of these numbered layers are computed again, if the user wrote lists by stage."""
        if not self.by_stage:
            return
        for number, layer in layers:
            if layer.full:
                yield f"Set full recompute at layer {number}"
            elif layer.modules:
                yield f"Set select recompute on at layer {number}: {', '.join(layer.modules)}"


COLLECTIVES = frozenset({"self_attention.linear_qkv", "self_attention.linear_proj", "mlp.linear_fc1", "mlp.linear_fc2"})
"""The modules of a layer that have tensor-parallel collectives."""

PATTERNS = {"select_recompute": DEFAULT_SELECT, "select_comm_recompute": DEFAULT_COMMUNICATION}
"""Settings with patterns -> those that stand for none given."""

BY_STAGE = ("recompute", "select_recompute", "select_comm_recompute")
"""Settings that are lists for stages."""


def _full(settings: RecomputeSettings, counts: Table) -> Table:
    """Whole layers by Megatron's flags: all of them, or a number of each chunk's or stage's first."""
    if settings.recompute_granularity != "full":
        return tables.none_of(counts)
    if settings.recompute_method == "uniform":
        return tables.all_of(counts)
    return _first(settings, settings.recompute_num_layers or 0, counts)


def _first(settings: RecomputeSettings, layers: int, counts: Table) -> Table:
    """Of each chunk or, with --enable-recompute-layers-per-pp-rank, of each stage, dealt over its chunks."""
    if settings.enable_recompute_layers_per_pp_rank:
        return tables.dealt([layers] * len(counts[0]), counts)
    return tables.first_of(layers, counts)


def _select(settings: RecomputeSettings, counts: Table) -> dict[str, Table]:
    """Modules by Megatron's and MindSpeed's flags. MindSpeed counts layers after the whole ones."""
    chosen: dict[str, Table] = {}
    if settings.recompute_granularity == "selective":
        for name in settings.recompute_modules or ("core_attn",):
            chosen |= dict.fromkeys(map(_pattern, MEGATRON_MODULES.get(name, ())), tables.all_of(counts))
    full = (settings.recompute_num_layers or 0) if settings.recompute_granularity == "full" else 0
    for asked, layers, modules in (
        (settings.recompute_activation_function, settings.recompute_activation_function_num_layers, ACTIVATION),
        (settings.recompute_norm, settings.recompute_norm_num_layers, NORMS),
        (settings.recompute_mla_up_proj, None, MEGATRON_MODULES["mla_up_proj"]),
    ):
        if asked:
            table = tables.all_of(counts) if layers is None else _first(settings, full + layers, counts)
            chosen |= dict.fromkeys(map(_pattern, modules), table)
    return chosen


def _pattern(path: str) -> str:
    return path.replace(".", r"\.")


def wrong_settings(
    settings: RecomputeSettings, counts: Table, flags: dict[str, str], modules: tuple[str, ...]
) -> Iterator[Finding]:
    """What is wrong with the lists by stage; `flags` are the names of the settings, `modules` what the model's layers
    have."""
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
        there = tuple(LINEAR_AFTER) if name.startswith("select_comm") else modules
        for pattern in found if by_pattern else ():
            yield from _unknown_pattern(flags[name], pattern, there)


def _unknown_pattern(flag: str, pattern: str, there: tuple[str, ...]) -> Iterator[Finding]:
    try:
        rule = (
            None if {*matching(pattern)} & {*there} else f"matches no module; those of a layer are {', '.join(there)}"
        )
    except ValueError as error:
        rule = str(error)
    if rule:
        yield Finding(flag, pattern, rule, "change the pattern")
