"""The fastest layouts that fit: candidates in the order of a low estimate of their time, until no further
estimate is below the times found."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from parallel_core.costs import StagePlan
from parallel_core.numerics.dtypes import DTYPES
from parallel_core.planner.engine import engine_of
from parallel_core.planner.layouts import RECOMPUTE, Layout
from parallel_core.planner.passes import passes_of
from parallel_core.planner.plan import Plan
from parallel_core.sharding import place


@dataclass(frozen=True)
class Found:
    """A layout that was planned, with its plan."""

    layout: Layout
    plan: Plan

    @property
    def seconds(self) -> float:
        """Planned seconds of a step."""
        return self.plan.step.total

    @property
    def memory(self) -> float:
        """Bytes that the program allocates on a rank of the fullest stage."""
        return self.plan.memory[self.plan.fullest].total


@dataclass(frozen=True)
class WholeModel:
    """The whole model on a single pipeline stage, for one micro-batch on one rank. plan: of a layout with one stage."""

    plan: Plan

    @cached_property
    def stage(self) -> StagePlan:
        """The plan of the only stage."""
        return self.plan.stages[0]

    @cached_property
    def seconds(self) -> float:
        """Seconds of a micro-batch's forward and backward through the whole model, gradients of weights included."""
        return sum(sum(passes_of(chunk, self.stage, self.plan.speed).totals) for chunk in self.stage.chunks)

    @cached_property
    def kept(self) -> int:
        """Bytes that the decoder's layers keep of a micro-batch for the backward."""
        engine, micro_batch = engine_of(self.plan.device, self.plan.config), self.stage.micro_batch
        of_blocks = (sum(chunk.decoder.layers.kept_bytes(micro_batch).values()) for chunk in self.stage.chunks)
        return sum(of_blocks) + sum(engine.kept_beside(chunk, micro_batch) for chunk in self.stage.chunks)

    @cached_property
    def elements(self) -> tuple[int, int]:
        """(The number of trained elements on a rank, the number of those of them that are of the decoder's layers)."""
        sizes = [(one.shard.name, place(one.shard, self.stage.coordinates).size) for one in self.stage.trained]
        return sum(size for _, size in sizes), sum(size for name, size in sizes if name.startswith("decoder.layers."))


@dataclass(frozen=True)
class Bound:
    """A low estimate of the seconds of a step, and of the bytes, of any layout of a job: the passes with layers spread
    evenly over the stages, and the pipeline's bubble. Uneven layers, messages between stages, those of data parallelism
    and the update are left out; still a plan may be faster, as where ranks compute beside idle cores
    (`Calibration.alone`), or messages of experts travel while a pass beside them computes. given: the job's plan in the
    layout of its flags; whole: a function from a layout to the whole model on one stage, None where that cannot be
    built."""

    given: Plan
    """The plan of the job in whatever layout its flags give."""
    whole: Callable[[Layout], WholeModel | None]
    """A function from a layout to the whole model on one stage; None if that cannot be built."""
    _known: dict[Layout, WholeModel | None] = field(default_factory=dict)

    def _model(self, layout: Layout) -> WholeModel | None:
        key = replace(layout, pipeline=1, virtual=1, zero=0)
        if key not in self._known:
            self._known[key] = self.whole(key)
        return self._known[key]

    def _micro_batches(self, layout: Layout) -> int:
        replicas = self._world // (layout.tensor * layout.context * layout.pipeline)
        return self.given.samples // (replicas * layout.micro_batch)

    @property
    def _world(self) -> int:
        return self.given.config.parallel_config.world_size

    def seconds(self, layout: Layout) -> float:
        """A low estimate of a step of the layout, in seconds: those of its passes, or of their FLOPs alone where the
        model cannot be built, and the bubble."""
        model, micro_batches = self._model(layout), self._micro_batches(layout)
        work = self._least_work if model is None else micro_batches * model.seconds / layout.pipeline
        return work * (1 + (layout.pipeline - 1) / (micro_batches * layout.virtual))

    @cached_property
    def _least_work(self) -> float:
        """Seconds of a rank's share of the model's FLOPs at the highest rate of products or attention."""
        calibration = self.given.device.calibration
        rate = self.given.peak * max(calibration.products, 2 * calibration.attention)
        return self.given.flops / self._world / rate

    def fits(self, layout: Layout) -> bool:
        """Whether the layout's stages might have room: for weights, gradients and states (these not with offloading) on
        average; and, unless there is context parallelism, offloading or a layer that does nothing, on the first stage
        for those of its layers with the activations of as many micro-batches as are in flight there. True where the
        model cannot be built."""
        model, config = self._model(layout), self.given.config
        if model is None:
            return True
        every, of_layers = (self._buffers(layout, elements) / layout.pipeline for elements in model.elements)
        stages, chunks = layout.pipeline, layout.virtual
        warm_up = stages if chunks == 1 else 2 * (stages - 1) + (chunks - 1) * stages + 1
        in_flight = min(warm_up, self._micro_batches(layout) * chunks) / (stages * chunks)
        is_plain = layout.context == 1 and not config.parallel_config.noop_layers and not self._offloads
        # 1% less: padding is not spread evenly
        least = max(every, of_layers + in_flight * model.kept if is_plain else 0.0) * 0.99
        device = self.given.device
        share = 1 + device.calibration.ranges.memory + engine_of(device, config).allocator_share
        return least * share + device.reserved_bytes <= device.memory_bytes

    @cached_property
    def _offloads(self) -> bool:
        return any(size for stage in self.given.memory for size in stage.elsewhere.values())

    def _buffers(self, layout: Layout, elements: int) -> float:
        """Bytes of weights, gradients and states of as many trained elements on a rank; without states where the job
        keeps some in host memory or in files."""
        model, gradient = self.given.config.model_config, self.given.config.training_config.gradient
        replicas = self._world // (layout.tensor * layout.pipeline)
        shares = [1 / replicas if layout.zero >= stage else 1.0 for stage in (3, 2, 1)]
        weight, summed = DTYPES[model.params_dtype].bytes, DTYPES[gradient.type_for(model.params_dtype)].bytes
        states = 0.0 if self._offloads else self._state_bytes
        return elements * sum(size * share for size, share in zip((weight, summed, states), shares, strict=True))

    @cached_property
    def _state_bytes(self) -> float:
        """Bytes of the optimizer's states for one element, from those of a rank of the first stage of the given
        layout."""
        plan = self.given.stages[0]
        owned = sum(span.size for _, kept in plan.residences for span in kept.owned)
        return self.given.buffers[0].optimizer_states / owned if owned else 0.0


def search(layouts: Sequence[Layout], bound: Bound, plan: Callable[[Layout], Plan | None], count: int) -> list[Found]:
    """The `count` fastest layouts that fit, or fewer if fewer do, the fastest first, as far as `bound` is below every
    plan and none that is passed over is faster. Among layouts that differ in recomputation and ZeRO alone only the
    fastest that was planned counts.

    Layouts are planned in the order of their bound, of ZeRO's stage, and of recomputation from least to most. Once one
    fits, those behind it that differ in recomputation and ZeRO alone, and have no lower stage of ZeRO, are passed over;
    and so are those that `bound` says do not fit. plan: a function from a layout to its plan, None where the layout is
    not legal.
    """
    best: dict[Layout, Found] = {}
    fitting: dict[Layout, int] = {}
    possible = [(bound.seconds(one), one.zero, list(RECOMPUTE).index(one.recompute), one) for one in layouts]
    for least, zero, _, layout in sorted(possible, key=lambda entry: entry[:3]):
        if len(best) >= count and least >= max(sorted(one.seconds for one in best.values())[:count], default=0.0):
            break
        made = None if fitting.get(layout.bare, zero + 1) <= zero or not bound.fits(layout) else plan(layout)
        if made is None or not made.fits:
            continue
        fitting[layout.bare] = zero
        found = Found(layout, made)
        best[layout.bare] = min(best.get(layout.bare, found), found, key=lambda one: one.seconds)
    return sorted(best.values(), key=lambda one: one.seconds)[:count]
