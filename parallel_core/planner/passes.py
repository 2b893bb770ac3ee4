"""Seconds of one micro-batch's passes through a chunk of the model, by named parts."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from parallel_core.blocks import Chunk
from parallel_core.costs import StagePlan, reduction_bytes
from parallel_core.messages import Message
from parallel_core.operations import ELEMENTWISE, PRODUCTS, Operation, Work
from parallel_core.planner.speed import ALL_MESSAGES, Speed, message_part

TENSOR, PIPELINE, DATA, EXPERTS = "tensor parallel", "pipeline", "data parallel", "expert parallel"


@dataclass(frozen=True)
class Passes:
    """One micro-batch's passes through one chunk on a rank, as part of a step's time -> seconds. backward: without the
    gradients of weights, which are `weight`; hidden: messages that run beside computation, in none of the others;
    flops: floating-point operations of all passes; meets: whether ranks meet in collectives within the passes."""

    forward: dict[str, float]
    backward: dict[str, float]
    """The backward without the gradients of weights, which are in `weight`; operations that run again are included."""
    weight: dict[str, float]
    hidden: dict[str, float]
    """Messages that run beside computation, and so are in none of `forward`, `backward` and `weight`."""
    flops: float
    """Floating-point operations of forward, backward and gradients of weights, recomputed ones included."""
    meets: bool
    """Whether ranks meet in collectives within the forward or the backward."""

    @cached_property
    def totals(self) -> tuple[float, float, float]:
        """Seconds of the forward, of the backward without weight gradients, and of weight gradients."""
        return sum(self.forward.values()), sum(self.backward.values()), sum(self.weight.values())

    @property
    def parts(self) -> Counter[str]:
        """Part -> seconds of forward, backward and gradients of weights together."""
        return _sum((self.forward, self.backward, self.weight))


def _sum(tables: Iterable[dict[str, float]]) -> Counter[str]:
    found: Counter[str] = Counter()
    for table in tables:
        for name, value in table.items():
            found[name] += value  # type: ignore[assignment]
    return found


def passes_of(chunk: Chunk, plan: StagePlan, speed: Speed) -> Passes:
    """The passes of one micro-batch through a chunk on a device. Gradients of weights hide tensor-parallel messages of
    the backward, for at most the seconds that those of the forward take (an estimate of column-parallel linears'
    share); not where ranks move messages themselves (`Speed.hides`). With `speed.overlaps_tensor` products hide up to
    (t-1)/t of the tensor-parallel messages of both passes, in the backward only if that hides more; t is the
    tensor-parallel size. Sweeps of gradients that are reduced in each micro-batch count as elementwise work of the
    gradients of weights, at the rate of the update."""
    operations = list(chunk.operations(plan.micro_batch))
    messages = list(chunk.messages(plan.micro_batch))
    sent = _seconds(speed, (one for one in messages if not one.backward))
    sent_back = _seconds(speed, (one for one in messages if one.backward))
    weight = speed.by_part(((one, one.weight) for one in operations), {}, back=True)
    weight[ELEMENTWISE] += reduction_bytes(plan) / len(plan.chunks) / speed.update_bytes_per_second
    backwards = [*_backward(operations)]
    there, back = sent.get(TENSOR, 0.0), sent_back.get(TENSOR, 0.0)
    hidden_there, hidden_back = 0.0, speed.hides * min(there, back, sum(weight.values()))
    if speed.overlaps_tensor and speed.hides:
        products = [_products(speed, passes) for passes in (((one, one.forward) for one in operations), backwards)]
        shown = 1 / plan.micro_batch.tensor  # a product has `tensor` parts, and nothing overlaps the first
        hidden_there = (1 - shown) * min(there, products[0])
        hidden_back = max(hidden_back, (1 - shown) * min(back, products[1] + weight[PRODUCTS]))
    sent[TENSOR], sent_back[TENSOR], hidden = there - hidden_there, back - hidden_back, hidden_there + hidden_back
    meets = any(speed.meets(one) for one in messages)
    wait = meets * speed.device.calibration.meeting
    forward = _with_waits(speed.by_part(((one, one.forward) for one in operations), sent), 0.0, wait)
    backward = _with_waits(speed.by_part(backwards, sent_back, back=True), sum(weight.values()), wait)
    flops = sum(one.forward.flops * (1 + one.runs_again) + one.backward.flops + one.weight.flops for one in operations)
    return Passes(forward, backward, weight, {TENSOR: hidden}, flops, meets)


def _with_waits(seconds: dict[str, float], further: float, share: float) -> dict[str, float]:
    """The seconds of a pass by part, with a wait of `share` of the computed ones in the messages that take most time.
    further: seconds computed beside these."""
    sent = {part: value for part, value in seconds.items() if part in ALL_MESSAGES}
    if not (share and sent):
        return seconds
    longest = max(sent, key=sent.__getitem__)
    computed = sum(seconds.values()) - sum(sent.values()) + further
    return {**seconds, longest: seconds[longest] + share * computed}


def _products(speed: Speed, passes: Iterable[tuple[Operation, Work]]) -> float:
    return sum(speed.seconds(one, work) for one, work in passes if one.kind == PRODUCTS)


def passes_of_stage(plan: StagePlan, speed: Speed) -> list[Passes]:
    """The passes of each chunk of a stage; equal chunks share a value."""
    found: list[Passes] = []
    for number, shape in enumerate(plan.shape):
        earlier = plan.shape.index(shape)
        found.append(found[earlier] if earlier < number else passes_of(plan.chunks[number], plan, speed))
    return found


def _backward(operations: Iterable[Operation]) -> Iterator[tuple[Operation, Work]]:
    for one in operations:
        yield one, one.backward
        if one.runs_again:
            yield one, one.forward


def _seconds(speed: Speed, messages: Iterable[Message]) -> dict[str, float]:
    found: dict[str, float] = {}
    for one in messages:
        part = message_part(one.kind)
        found[part] = found.get(part, 0.0) + speed.message(one)
    return found
