"""The exchange of tensors between the stages of a pipeline.

s sequence, b micro-batch, h hidden, c context-parallel size, t tensor-parallel size.
"""

from collections.abc import Sequence

import mindspore as ms
import numpy as np
from mindspore import Tensor

from parallel_core.blocks import CarriedChoice
from parallel_core.config import AllConfig
from parallel_core.context import SequenceLayout
from parallel_core.schedules import Exchange
from parallel_core.schedules.actions import Compute
from pynative import parallel_state
from pynative.collectives import Group, Handle, Recv, Send
from pynative.parameter import type_of

DIMENSIONS = 3


def hidden_states_shape(config: AllConfig) -> tuple[int, int, int]:
    """The shape of what one stage sends to the next where shapes do not vary: [s/c, b, h], or [s/c/t, b, h] with
    sequence parallelism; with hyper-connections h is the width of all residual streams."""
    length = SequenceLayout.of(config.parallel_config).local_length(config.model_config.seq_length)
    return length, config.dataset_config.batch_size, config.model_config.residual_width


class Channel:
    """The exchange of tensors, all of one type, between the stages of one pipeline.

    Args:
        group: the stages, first to last.
        shape: of every tensor, unless the stages tell each other (`shapes_vary`); dtype: of every tensor.
        overlap: leave transfers under way while the stage computes; otherwise `exchange` waits for those it posts.
        shapes_vary: send a message with the shape ahead of each tensor, which must have three axes.
    """

    def __init__(
        self, group: Group, shape: tuple[int, ...], dtype: object, *, overlap: bool = True, shapes_vary: bool = False
    ) -> None:
        self.group, self.shape, self.dtype = group, shape, dtype
        self.overlap, self.shapes_vary = overlap, shapes_vary
        self._sending: list[Handle] = []

    def exchange(self, action: Exchange, results: dict[Compute, Tensor]) -> dict[Compute, Handle]:
        """Post all transfers of an exchange together, removing the tensors to send from `results`. Returns a handle for
        each tensor that will arrive, by the computation that needs it.

        The sends of the previous exchange are waited for first, which bounds the memory under way. A schedule that
        passes `schedules.check` does not deadlock by that.
        """
        self.finish()
        tensors = [(results.pop(send.produced), send.peer) for send in action.sends]
        self._sending, receiving = self.post(tensors, [receive.peer for receive in action.receives])
        if not self.overlap:
            for work in (*self._sending, *receiving):
                work.wait()
        return {receive.consumed: work for receive, work in zip(action.receives, receiving, strict=True)}

    def post(self, tensors: Sequence[tuple[Tensor, int]], sources: Sequence[int]) -> tuple[list[Handle], list[Handle]]:
        """Post sends of (tensor, to which stage) and receives from stages, all together; returns (a handle for each
        send, a handle for each receive). Where shapes vary, this waits for the shapes of what will arrive."""
        shapes = self._agreed_shapes(tensors, sources) if self.shapes_vary else [self.shape] * len(sources)
        return self._post(tensors, sources, shapes, self.dtype)

    def finish(self) -> None:
        """Wait until the sends of the last exchange are complete."""
        for work in self._sending:
            work.wait()
        self._sending = []

    def _post(
        self,
        tensors: Sequence[tuple[Tensor, int]],
        sources: Sequence[int],
        shapes: Sequence[tuple[int, ...]],
        dtype: object,
    ) -> tuple[list[Handle], list[Handle]]:
        messages: list[Send | Recv] = [Send(tensor, peer) for tensor, peer in tensors]
        messages += [Recv(shape, dtype, peer) for shape, peer in zip(shapes, sources, strict=True)]
        works = self.group.batch_send_recv(messages)
        return works[: len(tensors)], works[len(tensors) :]

    def _agreed_shapes(self, tensors: Sequence[tuple[Tensor, int]], sources: Sequence[int]) -> list[tuple[int, ...]]:
        own = [(Tensor.from_numpy(np.array(tensor.shape, np.int32)), peer) for tensor, peer in tensors]
        _, receiving = self._post(own, sources, [(DIMENSIONS,)] * len(sources), ms.int32)
        return [tuple(work.wait().asnumpy().tolist()) for work in receiving]


def pipeline_channel(config: AllConfig) -> Channel:
    """A new channel between the stages of this rank's pipeline; its tensors' shape and type, and whether shapes vary
    and transfers overlap, follow from the configuration."""
    return Channel(
        parallel_state.get_pipeline_model_parallel_group(),
        hidden_states_shape(config),
        type_of(config.model_config.residual_dtype),
        overlap=config.parallel_config.overlap_p2p_comm,
        shapes_vary=config.parallel_config.variable_seq_lengths or CarriedChoice.any_in(config.model_config),
    )
