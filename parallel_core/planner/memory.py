"""Memory of a stage by named parts: the plan's buffers and activations, and what the assumed engine has beside them."""

from dataclasses import dataclass
from typing import NamedTuple

from parallel_core.blocks import Chunk
from parallel_core.costs import BufferBytes, StagePlan, on_host
from parallel_core.costs.activations import Moment, hidden_state_bytes, moments
from parallel_core.planner.device import Device
from parallel_core.planner.engine import Engine, engine_of
from parallel_core.planner.prediction import Prediction
from parallel_core.schedules import Backward
from parallel_core.schedules.draw import LOOKS
from parallel_core.schedules.generators import SPLIT


@dataclass(frozen=True)
class StageMemory(Prediction):
    """Bytes that the program allocates on a rank of a stage at its peak, by part; beside these what the runtime and its
    allocator hold (`reserved`), and by part what lies in host memory or files (`elsewhere`; of activations the bytes by
    which that lowers the peak). `when`: the computation during which the peak occurs, in words."""

    reserved: float
    """Bytes beside the parts: memory that the runtime keeps, and memory that its allocator cannot use."""
    when: str
    """The computation during which the peak occurs, in words."""
    elsewhere: dict[str, float]
    """Part -> bytes that lie in host memory or in a file instead, where the device has memory of its own; of
    activations those by which this lowers the peak."""

    @property
    def needed(self) -> float:
        """Bytes of the device that the rank needs at most: the upper end of the range and the reserved memory."""
        return self.high + self.reserved


def stage_memory(plan: StagePlan, fixed: BufferBytes, device: Device) -> StageMemory:
    """The memory of a rank of a stage on a device. fixed: the bytes of its weights, gradients and
    optimizer states."""
    engine = engine_of(device, plan.config)
    elsewhere: dict[str, float] = {
        "weights": fixed.offloaded_parameters,
        "optimizer": fixed.offloaded_states,
        "activations": on_host(plan),
    }
    parts: dict[str, float] = {
        "weights": fixed.parameters - elsewhere["weights"],
        "gradients": fixed.gradients,
        "optimizer": fixed.optimizer_states - elsewhere["optimizer"],
        "weight-gradient buffers": engine.weight_gradient_buffers(plan.chunks, plan.micro_batch),
        "workspace": engine.workspace,
    }
    peak, transients = max(course(plan, engine), key=lambda needed: needed.total)
    logits = sum(chunk.kept_bytes(plan.micro_batch).get("loss", 0) for chunk in plan.chunks)
    parts |= {"activations": peak.kept - logits, "logits": logits, "recomputed": peak.again}
    parts |= transients
    total = sum(parts.values())
    reserved = device.reserved_bytes + engine.allocator_share * total
    return StageMemory(parts, device.calibration.ranges.memory, reserved, _words(plan, peak), elsewhere)


class Needed(NamedTuple):
    """A computation of a stage with the bytes that are kept meanwhile (`moment`), and part -> bytes that exist only
    while it runs (`transients`; empty but for a backward)."""

    moment: Moment
    transients: dict[str, float]

    @property
    def total(self) -> float:
        """Bytes of activations, of parts that run again and of transients during the computation."""
        return self.moment.kept + self.moment.again + sum(self.transients.values())


def course(plan: StagePlan, engine: Engine) -> list[Needed]:
    """The bytes of activations in use during each of the stage's computations, for as many micro-batches of a step as
    show warm-up, steady state and drain; in the order that the schedule has where it is given no times of computations.
    Among transients a buffer for the output layer's weight gradient counts, too; otherwise weights, their gradients and
    buffers for these, optimizer states and the workspace are left out."""
    micro_batch, elsewhere = plan.micro_batch, [chunk.offloaded_bytes(plan.micro_batch) for chunk in plan.chunks]
    extra = [engine.kept_beside(chunk, micro_batch) for chunk in plan.chunks]
    kept = [sum(c.kept_bytes(micro_batch).values()) for c in plan.chunks]
    on_device = [a + b - c for a, b, c in zip(kept, extra, elsewhere, strict=True)]
    backwards = [_backward(plan, chunk, engine) for chunk in plan.chunks]
    in_backward = [own + again for own, (again, _) in zip(on_device, backwards, strict=True)]
    return [
        Needed(moment, backwards[moment.action.chunk][1] if isinstance(moment.action, Backward) else {})
        for moment in moments(plan, on_device, in_backward)
    ]


def _backward(plan: StagePlan, chunk: Chunk, engine: Engine) -> tuple[int, dict[str, float]]:
    """(bytes of parts that run again, part -> other bytes) that exist in a chunk's backward beside what its forward has
    kept. These are the head's or a layer's, whichever has more; by then the logits are free, unless weight gradients,
    which need their gradient, are put off."""
    micro_batch, kept = plan.micro_batch, chunk.kept_bytes(plan.micro_batch)
    split = plan.config.parallel_config.schedule_name in SPLIT
    first, logits = sum(kept.values()), 0 if split else kept.get("loss", 0)
    second = chunk.bytes_in_backward(micro_batch)
    stream = hidden_state_bytes(plan)  # `second` counts two hidden-state gradients, which are among the layers' already
    again = max(0, second - first + logits - 2 * stream) + engine.kept_by_second_run(chunk, micro_batch)
    of_head, of_layers = engine.of_head(chunk, micro_batch), engine.of_layers(chunk, micro_batch)
    if again + of_layers - logits <= sum(of_head.values()):
        return 0, of_head
    beside = min(of_layers, again + of_layers - logits)
    return round(again + of_layers - logits - beside), {"gradients of activations": beside}


def _words(plan: StagePlan, moment: Moment) -> str:
    kind = LOOKS[type(moment.action)].name
    chunk = f" of chunk {moment.action.chunk}" if len(plan.chunks) > 1 else ""
    return f"stage {plan.stage}, micro-batch {moment.action.micro_batch}'s {kind}{chunk}"
