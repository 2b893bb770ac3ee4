"""Copies of the hot experts on every expert-parallel rank, so that their tokens do not travel. Hot are, at first, the
experts of the lowest numbers, later those with most tokens.

An expert's parameters and optimizer states are its owner's alone. The copies get the owner's values before a step's
first forward; their gradients are summed over the ranks and added to the owner's after its last backward. So whoever
reads the model, a checkpoint say, finds the trained values, whichever experts are hot.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import cast

import numpy as np
from mindspore import Parameter, Tensor, nn

from parallel_core.buffers.layout import Span
from parallel_core.config import ModelConfig, MoEConfig
from parallel_core.moe import hot_experts
from parallel_core.moe.hot_experts import Hot, Slots, hottest, is_revised
from parallel_core.numerics.dtypes import Array
from parallel_core.sharding import ShardSpec
from parallel_core.step_figures import TOKENS_CHOSEN
from pynative import kernels, parallel_state
from pynative.collectives import Group
from pynative.distributed.flat_memory import FlatMemory
from pynative.memory import in_place
from pynative.moe.experts import Expert, Experts
from pynative.moe.token_dispatcher import MoETokenDispatcher
from pynative.parameter import ParameterMeta, type_name
from pynative.step_part import StepPart
from pynative.step_position import get_step_position
from pynative.tape import autograd
from pynative.tape.autograd import TapeGradients

LINEARS = ("linear_fc1", "linear_fc2")


def _parameters(expert: Expert) -> list[Parameter]:
    """An expert's weights and biases, in one order on all ranks."""
    linears = (getattr(expert, name) for name in LINEARS)
    return [parameter for linear in linears for parameter in (linear.weight, linear.bias) if parameter is not None]


class Copy:
    """Memory for a copy of one expert's weights and biases, and for their gradients; `Experts` computes with it as with
    an `Expert`."""

    def __init__(self, like: Expert) -> None:
        self._shapes = [tuple(parameter.shape) for parameter in _parameters(like)]
        self._ends = np.cumsum([0, *(int(np.prod(shape)) for shape in self._shapes)]).tolist()
        self._values = self._memory(type_name(like.linear_fc1.weight.dtype))
        self._gradients: FlatMemory | None = None
        self._weights = [autograd.leaf(view) for view in self._views(self._values)]
        for weight in self._weights:
            weight.meta = ParameterMeta(ShardSpec(shape=tuple(weight.shape)))
        weights = iter(self._weights)
        for name in LINEARS:
            own = getattr(like, name)
            has_bias = own.bias is not None
            weight = next(weights)
            bias = next(weights) if has_bias else None
            setattr(self, name, SimpleNamespace(weight=weight, bias=bias, adapter=None, products=own.products))

    def _memory(self, dtype: str) -> FlatMemory:
        return FlatMemory([Span(0, self._ends[-1])], dtype)

    def _views(self, memory: FlatMemory) -> list[Tensor]:
        return [memory.view(start, shape) for start, shape in zip(self._ends, self._shapes, strict=False)]

    def fetch(self, expert: Expert | None, source: int, group: Group) -> None:
        """Broadcast the expert's values from rank `source` of the group into the copy. expert: the expert on that rank,
        None on the others. All ranks of the group call this."""
        whole = self._values.span(0, self._ends[-1])
        if expert is not None:
            for view, parameter in zip(self._weights, _parameters(expert), strict=True):
                in_place.assign(view, parameter)
        received = group.broadcast(whole, source)
        if expert is None:
            in_place.assign(whole, received)

    def expect_gradients(self, like: Expert) -> None:
        """Empty the copy's gradients, and have them added up in the gradient type of `like`, one of this rank's own
        experts."""
        gradient = like.linear_fc1.weight.meta.main_grad
        if self._gradients is None:
            self._gradients = self._memory(type_name(gradient.dtype))
        for weight, view in zip(self._weights, self._views(self._gradients), strict=True):
            weight.meta.main_grad, weight.meta.main_grad_is_empty = view, True

    def give_gradients(self, expert: Expert | None, group: Group) -> None:
        """Sum the copies' gradients over the group, and on the rank that owns the expert add the sum to the expert's
        gradients. expert: the owned expert; None on the other ranks. All ranks of the group call this."""
        assert self._gradients is not None
        arrived = ((weight, autograd.take_gradient(weight)) for weight in self._weights)
        TapeGradients.add((weight, gradient) for weight, gradient in arrived if gradient is not None)
        for weight in self._weights:
            if weight.meta.main_grad_is_empty:
                kernels.fill_(weight.meta.main_grad, 0.0)
        whole = self._gradients.span(0, self._ends[-1])
        group.all_reduce(whole, out=whole)
        if expert is not None:
            views = self._views(self._gradients)
            TapeGradients.add(zip(_parameters(expert), views, strict=True))


class HotExperts:
    """A layer's hot experts, and this rank's copies of them, to which tokens go between `install` and `remove`.

    Args:
        layer_number: the layer's, global, from 1.
    """

    def __init__(
        self, config: ModelConfig, layer_number: int, experts: Experts, dispatcher: MoETokenDispatcher
    ) -> None:
        moe = config.moe_config
        assert moe.num_experts is not None
        self.layer_number, self._experts, self._dispatcher = layer_number, experts, dispatcher
        self._count, self._cold_share = moe.num_experts, moe.cold_token_percent
        self.hot: Hot = hot_experts.first_hot(moe.hot_expert_num)
        """Numbers of the hot experts from the next step on; the same on all ranks."""
        self._group = parallel_state.get_expert_model_parallel_group()
        self._own = list(experts.experts)
        copies = moe.hot_expert_num if self._group.size > 1 else 0
        self._copies = [Copy(self._own[0]) for _ in range(copies)]

    def capacities(self, capacity: int) -> Array:
        """The most of this rank's tokens that each expert takes, int64 [E]: `capacity`, an even share times the
        capacity factor, for a hot one, and `capacity` times --cold-token-percent, rounded down, for a cold one."""
        return hot_experts.capacities(capacity, self._cold_share, self.hot, self._count)

    def install(self, train: bool) -> None:
        """Bring the owners' values into the copies, and have the dispatcher route hot experts' tokens to the copies.
        train: also expect gradients of the copies. Do nothing with one expert-parallel rank, which has no copies."""
        for number, copy in zip(self.hot, self._copies, strict=False):
            copy.fetch(self._owned(number), number // len(self._own), self._group)
            if train:
                copy.expect_gradients(self._own[0])
        if self._copies:
            self._experts.experts = cast("list[Expert]", [*self._own, *self._copies])
            self._dispatcher.slots = Slots.with_copies(self.hot, self._count, self._group.size, self._group.rank)

    def remove(self, train: bool) -> None:
        """If `train`, add the copies' gradients to the owners'; then have tokens routed to the owners again."""
        for number, copy in zip(self.hot, self._copies, strict=False):
            if train:
                copy.give_gradients(self._owned(number), self._group)
        self._experts.experts, self._dispatcher.slots = list(self._own), Slots.plain(self._count)

    def _owned(self, number: int) -> Expert | None:
        owner, place = divmod(number, len(self._own))
        return self._own[place] if owner == self._group.rank else None


class HotExpertLayers(StepPart):
    """The hot experts of all layers in a stage's chunks: copied to all expert-parallel ranks for each training step or
    evaluation, chosen anew after some training steps."""

    def __init__(self, model: Iterable[nn.Cell], moe: MoEConfig) -> None:
        cells = [cell for chunk in model for _, cell in chunk.cells_and_names()]
        self._layers = [layer for cell in cells if (layer := getattr(cell, "hot_experts", None)) is not None]
        self._count, self._update_step = moe.hot_expert_num, moe.hot_expert_update_step
        self._tokens: Array | None = None
        self.chosen: dict[int, Hot] = {}
        """The numbers of the hot experts chosen last, by layer number, in the layers of all stages."""

    @contextmanager
    def around(self, train: bool) -> Iterator[None]:
        """Context in which each of several expert-parallel ranks has copies of the hot experts. At its end, if `train`,
        the copies' gradients are added to the owners'; not if it ends by an error."""
        for layer in self._layers:
            layer.install(train)
        try:
            yield
        except BaseException:
            for layer in self._layers:
                layer.remove(train=False)
            raise
        for layer in self._layers:
            layer.remove(train)

    def after_update(self, figures: Mapping[str, Array]) -> None:
        """Keep how many tokens all ranks' routers sent to each expert of each layer, those dropped later included, and
        choose anew if this step is one to do so (`is_revised`)."""
        self._tokens = figures.get(TOKENS_CHOSEN)
        if is_revised(get_step_position().iteration + 1, self._update_step):
            self.choose()

    def choose(self) -> None:
        """Choose the hot experts of every layer: those with most tokens in the figures that `after_update` was given
        last. Do nothing before its first call, or without hot experts."""
        if self._count and self._tokens is not None:
            self.take({number: hottest(row, self._count) for number, row in enumerate(self._tokens, 1)})

    def take(self, chosen: Mapping[int, Hot]) -> None:
        """Take up a choice, by layer number, for those layers where it has as many experts as are hot in this run; all
        other layers have the first hot experts again."""
        self.chosen = {number: hot for number, hot in chosen.items() if len(hot) == self._count}
        for layer in self._layers:
            layer.hot = self.chosen.get(layer.layer_number, hot_experts.first_hot(self._count))
