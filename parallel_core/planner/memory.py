"""Memory of a stage by named parts: the plan's buffers and activations, and what the assumed engine has beside them."""

from dataclasses import dataclass
from typing import NamedTuple

from parallel_core.costs import BufferBytes, StagePlan, on_host
from parallel_core.costs.activations import Moment, hidden_state_bytes, moments
from parallel_core.planner.device import Device
from parallel_core.planner.engine import Engine, engine_of
from parallel_core.planner.prediction import Prediction
from parallel_core.schedules import Backward
from parallel_core.schedules.draw import LOOKS


@dataclass(frozen=True)
class StageMemory(Prediction):
    """Bytes that the program allocates on a rank of a stage, at its peak."""

    reserved: float
    """Bytes beside them: memory that the runtime keeps, and what its allocator cannot use."""
    when: str
    """The moment of the peak."""
    elsewhere: dict[str, float]
    """Bytes in no part: those that lie in host memory or in a file, where the device has memory of its own."""

    @property
    def needed(self) -> float:
        """Bytes that the device must have, at the most."""
        return self.high + self.reserved


def stage_memory(plan: StagePlan, fixed: BufferBytes, device: Device) -> StageMemory:
    """The parts of a stage's memory on a device; `fixed` says those of its buffers."""
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
    """A computation of a stage, and all that exists beside the buffers while it runs."""

    moment: Moment
    transients: dict[str, float]

    @property
    def total(self) -> float:
        """Bytes."""
        return self.moment.kept + self.moment.again + sum(self.transients.values())


def course(plan: StagePlan, engine: Engine) -> list[Needed]:
    """The stage's computations of a step in order, of as many micro-batches as show the schedule."""
    micro_batch, elsewhere = plan.micro_batch, [chunk.offloaded_bytes(plan.micro_batch) for chunk in plan.chunks]
    extra = [engine.kept_beside(chunk, micro_batch) for chunk in plan.chunks]
    kept = [sum(c.kept_bytes(micro_batch).values()) for c in plan.chunks]
    again = [chunk.bytes_in_backward(micro_batch) for chunk in plan.chunks]
    beside = [engine.kept_by_second_run(chunk, micro_batch) for chunk in plan.chunks]
    on_device = [a + b - c for a, b, c in zip(kept, extra, elsewhere, strict=True)]
    stream = hidden_state_bytes(plan)  # of gradients, which are among the transients: `again` has two of them
    in_backward = [
        own + max(0, second - first - 2 * stream) + more
        for own, second, first, more in zip(on_device, again, kept, beside, strict=True)
    ]
    transients = [engine.transients(chunk, micro_batch) for chunk in plan.chunks]
    return [
        Needed(moment, transients[moment.action.chunk] if isinstance(moment.action, Backward) else {})
        for moment in moments(plan, on_device, in_backward)
    ]


def _words(plan: StagePlan, moment: Moment) -> str:
    kind = LOOKS[type(moment.action)].name
    chunk = f" of chunk {moment.action.chunk}" if len(plan.chunks) > 1 else ""
    return f"stage {plan.stage}, micro-batch {moment.action.micro_batch}'s {kind}{chunk}"
