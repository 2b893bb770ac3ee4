"""Carry out a schedule's actions on one stage: any schedule, one loop."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mindspore import Tensor

from parallel_core.schedules import Backward, Exchange, Forward
from parallel_core.schedules.actions import Action, Compute
from pynative.collectives import Group, Recv, Send


@dataclass(frozen=True)
class Channel:
    """How tensors travel between the stages of a pipeline: all have one shape and type."""

    group: Group
    shape: tuple[int, ...]
    dtype: object

    def exchange(self, action: Exchange, results: dict[Compute, Tensor]) -> dict[Compute, Tensor]:
        """Post every transfer together; what arrived, by the action that needs it."""
        transfers: list[Send | Recv] = [Send(results.pop(send.produced), send.peer) for send in action.sends]
        transfers += [Recv(self.shape, self.dtype, receive.peer) for receive in action.receives]
        works = self.group.batch_send_recv(transfers)
        arrived = [work.wait() for work in works][len(action.sends) :]
        return {receive.consumed: tensor for receive, tensor in zip(action.receives, arrived, strict=True)}


def run(
    actions: Iterable[Action],
    forward: Callable[[int, Tensor | None], Tensor],
    backward: Callable[[int, Tensor | None], Tensor | None],
    channel: Channel,
) -> None:
    """Run one stage.

    `forward(micro_batch, hidden states from the stage before)` gives the hidden states for the stage after;
    `backward(micro_batch, their gradient from the stage after)` gives the gradient for the stage before.
    """
    arrived: dict[Compute, Tensor] = {}
    results: dict[Compute, Tensor] = {}
    sent_later = {transfer.produced for a in actions if isinstance(a, Exchange) for transfer in a.sends}
    for action in actions:
        match action:
            case Exchange():
                arrived.update(channel.exchange(action, results))
            case Forward() | Backward():
                compute = forward if isinstance(action, Forward) else backward
                result = compute(action.micro_batch, arrived.pop(action, None))
                if action in sent_later:
                    results[action] = result
