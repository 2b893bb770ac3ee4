"""Choices of keys by sparse attention that layers share, and that travel beside hidden states from one chunk of a
pipeline to the next.

s sequence, b batch, h width of the residual, t tensor-parallel size; k positions of a token's chosen keys.
"""

import mindspore
import numpy as np
from mindspore import Tensor, from_numpy, ops

from parallel_core import blocks
from parallel_core.config import ModelConfig
from parallel_core.context import as_array
from parallel_core.numerics.dtypes import Array
from pynative import kernels, parallel_state
from pynative.collectives import Group
from pynative.tape import autograd
from pynative.tensor_parallel.mappings import Boundary

Choices = dict[int, Tensor | None]
"""The choices of one forward, by the number (from 0) of the layer whose indexer made them: positions [b, u s, k] of the
chosen keys for the queries of the u ranks that exchange heads (Ulysses); None: all keys."""

BASE = 256
"""The base in which a position travels as two digits, each of which every type represents exactly."""


def of_block(chosen: Tensor | None, ulysses_group: Group) -> Tensor | None:
    """The choice of k keys, [b, u s, k], for the queries that this rank's heads have after Ulysses' exchange over a
    group of u ranks, from the choice [b, s, k] for this rank's shard; None stays None."""
    return chosen if chosen is None or ulysses_group.size == 1 else ulysses_group.all_gather(chosen, axis=1)


class SharedChoices:
    """The choice of keys by sparse attention that a chunk receives with its hidden states, and the one that it sends
    with them, if any. A choice has no gradient: the backward of receiving appends zeros in its place to the gradient
    of the hidden states, that of sending drops them."""

    def __init__(self, config: ModelConfig, block: blocks.Decoder) -> None:
        self.width, self.boundary = config.residual_width, Boundary.of(config)
        self._received, self._sent = block.received, block.sent
        self.ulysses_group = parallel_state.get_context_parallel_group_for_hybrid_ulysses()

    def received(self, both: Tensor) -> tuple[Tensor, Choices]:
        """A received message [s/t, b, h + 2 k] (without sequence parallelism [s, b, h + 2 k]; k chosen keys of a token)
        -> (its hidden states, the choices that the chunk begins with). If the chunk receives no choice: `both` as it
        is, and {}."""
        if self._received is None:
            return both, {}
        widths = (self.width, self._received.channels)

        def with_zeros(dy: Tensor) -> Tensor:
            return kernels.join_features(dy, kernels.cast(ops.zeros((*dy.shape[:2], widths[1])), dy.dtype))

        with autograd.no_grad():
            digits = kernels.cast(kernels.split_features(both, widths)[1], mindspore.float32)
            if self.boundary.cuts_sequence:
                digits = self.boundary.group.all_gather(digits)
            high, low = kernels.split_features(digits, (self._received.count,) * 2)
            own = kernels.cast(high * BASE + low, mindspore.int32).swapaxes(0, 1).contiguous()
            chosen = of_block(own, self.ulysses_group)
        hidden_states = autograd.Moved.apply(both, lambda x: kernels.split_features(x, widths)[0], with_zeros)
        return hidden_states, {self._received.layer: chosen}

    def sent(self, hidden_states: Tensor, choices: Choices) -> Tensor:
        """The message [s/t, b, h + 2 k] (without sequence parallelism [s, b, h + 2 k]; k chosen keys of a token) of
        hidden states and the choice that the next chunk begins with; the hidden states alone if the next chunk needs no
        choice."""
        if self._sent is None:
            return hidden_states
        chosen = choices[self._sent.layer]
        with autograd.no_grad():
            if chosen is None:
                positions = self.boundary.inside().positions(self._tokens(hidden_states))
                chosen = _all(hidden_states.shape[1], as_array(positions), self._sent.count)
            elif self.ulysses_group.size > 1:
                chosen = kernels.chunk(chosen, 1, self.ulysses_group.rank, self.ulysses_group.size)
            places = kernels.cast(chosen, mindspore.float32).swapaxes(0, 1).contiguous()
            if self.boundary.cuts_sequence:
                places = kernels.chunk(places, 0, self.boundary.group.rank, self.boundary.group.size)
            high = ops.floor(places / BASE)
            digits = kernels.cast(kernels.join_features(high, places - high * BASE), hidden_states.dtype)
        widths = (self.width, self._sent.channels)
        return autograd.Moved.apply(
            hidden_states,
            lambda x: kernels.join_features(x, digits),
            lambda dy: kernels.split_features(dy, widths)[0],
        )

    def _tokens(self, hidden_states: Tensor) -> int:
        """The length of the hidden states' sequence inside of the tensor-parallel region."""
        return len(hidden_states) * (self.boundary.group.size if self.boundary.cuts_sequence else 1)


def _all(batch: int, positions: Array, count: int) -> Tensor:
    """int32 [b, s, count]: for a query at each of these s positions the keys 0, 1, ... up to its own, of the first
    `count`; -1 in the place of later ones."""
    keys = np.arange(count, dtype=np.int32)
    chosen = np.where(keys <= positions[:, None], keys, np.int32(-1))
    return from_numpy(np.broadcast_to(chosen, (batch, len(positions), count)).copy())
