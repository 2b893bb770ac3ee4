"""The execution of a schedule's actions on one stage: one loop for any schedule."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mindspore import Tensor

from parallel_core.schedules import Backward, Exchange, Forward, Pair, WeightGrad
from parallel_core.schedules.actions import (
    Action,
    Compute,
    Ordered,
    Placement,
    computes_of,
    consumer,
    of_entry,
    split_backwards,
)
from pynative.collectives import Handle
from pynative.pipeline_parallel.channel import Channel
from pynative.tape.autograd import detached
from pynative.timers import Timers


@dataclass(frozen=True)
class Plan:
    """The actions of one stage in a step, in order. sent: the computations whose result goes to another stage; stays: a
    computation whose result stays -> the one that needs it; split: the backwards whose weight gradients are an action
    of their own; completing: the last computation of each chunk."""

    actions: tuple[Action, ...]
    sent: frozenset[Compute]
    """The computations whose result is sent to another stage."""
    split: frozenset[Backward]
    """The backwards whose weight gradients are an action of their own."""
    completing: frozenset[Compute]
    """The last computation of each chunk, with which the chunk's gradients are complete."""
    stays: dict[Compute, Compute]
    """Computation whose result stays on the stage -> the computation that needs it."""

    @classmethod
    def of(cls, actions: Sequence[Action], stage: int, placement: Placement) -> "Plan":
        """The plan of the actions of stage number `stage`. placement: the stage of each chunk of the model."""
        computes = list(computes_of(actions))
        targets = {compute: consumer(compute, stage, placement) for compute in computes}
        stays = {action: target[0] for action, target in targets.items() if target and target[1] == stage}
        sent = frozenset(s.produced for a in actions if isinstance(a, Exchange) for s in a.sends)
        last = {compute.chunk: compute for compute in computes}
        return cls(tuple(actions), sent, split_backwards(computes), frozenset(last.values()), stays)


COMPUTE = {
    Forward: "forward-compute",
    Backward: "backward-compute",
    WeightGrad: "weight-gradients-compute",
    Pair: "forward-and-backward-compute",
}
RECEIVE = {Forward: "forward-recv", Backward: "backward-recv"}
"""Kind of action -> Megatron's name of the timer around the wait for its input, as COMPUTE has those of the timers
around the action itself."""


def run(
    plan: Plan,
    compute: Callable[[Ordered, Sequence[Tensor | None]], Sequence[Tensor | None]],
    channel: Channel,
    timers: Timers,
) -> None:
    """Execute a plan on this stage.

    `compute(entry, received tensors)`, for an entry that is one computation or a pair, takes for each the tensor that
    it needs or None, and returns a result for each: of a forward the hidden states for the next chunk, of a backward
    the gradient for the chunk before, any value if no other computation needs it. A tensor that is still under way is
    waited for when the action that needs it runs. channel: sends and receives the tensors of each exchange. timers:
    measure computations, and the waits for tensors from other stages.
    """
    arrivals: dict[Compute, Handle] = {}
    results: dict[Compute, Tensor] = {}
    stayed: dict[Compute, Tensor] = {}

    def received(action: Compute) -> Tensor | None:
        arrival = arrivals.pop(action, None)
        if arrival is None:
            return stayed.pop(action, None)
        with timers(RECEIVE[type(action)]):
            return arrival.wait()

    for action in plan.actions:
        if isinstance(action, Exchange):
            arrivals.update(channel.exchange(action, results))
            continue
        computes = of_entry(action)
        inputs = [received(one) for one in computes]
        with timers(COMPUTE[type(action)], about=action):
            outputs = compute(action, inputs)
        for one, result in zip(computes, outputs, strict=True):
            if one in plan.sent:
                assert result is not None, f"{one} gave nothing to send"
                results[one] = result
            if one in plan.stays:
                assert result is not None, f"{one} gave nothing to hand over"
                stayed[plan.stays[one]] = detached(result)
    channel.finish()
