"""The router of a mixture of experts (Shazeer et al., 2017): chooses each token's experts, and the weights of their
results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from mindspore import Tensor, nn, ops

from parallel_core import blocks
from parallel_core.blocks.router import ROUTER_DTYPES
from parallel_core.config import ModelConfig
from parallel_core.config.moe import SPARSE_MIXER
from parallel_core.context import Ranges
from parallel_core.moe.routing import Noise, RoutingRule, get_capacity
from parallel_core.moe.token_dispatch import NONE
from parallel_core.numerics.dtypes import Array
from parallel_core.step_figures import TOKENS_BEYOND, TOKENS_CHOSEN, TOKENS_ROUTED, decoder_layers_of_experts
from pynative import kernels, parallel_state
from pynative.kernels.dropout import Key
from pynative.key_value_cache import is_generating
from pynative.memory.arrays import array_of
from pynative.moe.aux_loss import RouterLosses
from pynative.moe.router_replay import recording
from pynative.parameter import make_parameter, type_of
from pynative.step_figures import current
from pynative.tape.autograd import Moved
from pynative.tensor_parallel.linear import linear_with_grad_accumulation_and_async_allreduce
from pynative.tensor_parallel.mappings import Boundary
from pynative.tensor_parallel.random import get_rng_tracer

JITTER, FORCED_LOGITS, FIRST_DRAW, SECOND_DRAW = 3, 4, 5, 6
"""Places of a router's random numbers in a layer, which tell their keys apart (`RNGStateTracer.key`)."""


def uniform(key: Key, shape: tuple[int, int, int], positions: Ranges) -> Array:
    """Uniform random numbers, float64 [s, b, n] in (0, 1]: functions of the key, of b n, and of the given positions
    of the sequence."""
    _, batch, width = shape
    words = batch * width
    seed = np.random.SeedSequence((len(key), *key))
    parts = [np.random.PCG64DXSM(seed).advance(run.start * words).random_raw(len(run) * words) for run in positions]
    return (((np.concatenate(parts) >> np.uint64(11)) + np.uint64(1)) * 2.0**-53).reshape(shape)


def jitter(hidden: Tensor, epsilon: float, layer: int, positions: Ranges) -> Tensor:
    """hidden [s, b, h] times uniform numbers from 1 - epsilon to 1 + epsilon (Fedus et al., "Switch Transformers",
    2021). layer: its number; positions: the s tokens' in the sequence; the numbers depend on both."""
    numbers = uniform(get_rng_tracer().key(layer, JITTER), hidden.shape, positions)
    factors = (1.0 - epsilon + 2.0 * epsilon * numbers).astype(np.float32)
    return hidden * Tensor.from_numpy(factors).astype(hidden.dtype)


def random_logits(logits: Tensor, layer: int, positions: Ranges) -> Tensor:
    """Random numbers [s, b, E], which spread tokens evenly, in place of the logits; the logits get the gradient of
    these numbers unchanged. layer: its number; positions: the s tokens' in the sequence."""
    numbers = uniform(get_rng_tracer().key(layer, FORCED_LOGITS), logits.shape, positions)
    replaced = Tensor.from_numpy(numbers.astype(np.float32)).astype(logits.dtype)
    return Moved.apply(logits, lambda _: replaced, lambda gradient: gradient)


def draws(shape: tuple[int, int, int], layer: int, positions: Ranges) -> Noise:
    """The random numbers by which two experts are drawn for each of s b tokens. shape: (s, b, E); layer: its number;
    positions: the s tokens' in the sequence."""
    sequence, batch, number = shape
    both = [
        uniform(get_rng_tracer().key(layer, place), (sequence, batch, number + 1), positions).reshape(-1, number + 1)
        for place in (FIRST_DRAW, SECOND_DRAW)
    ]
    numbers = np.stack(both).astype(np.float32)
    return Noise(np.clip(numbers[..., :number], 1e-20, 1 - 2.0**-24), numbers[..., number])


class Routing(NamedTuple):
    """The experts of each of a rank's T tokens, k choices each (`experts`, -1: none), and the weights of their results
    (`probs`), both [T, k]. capacity: the rank's rows for each expert are padded to at most this many; None: not padded.
    """

    probs: Tensor
    """[T, k] float32, on the tape: the weight of each choice's result; 0 where it was dropped."""
    experts: Tensor
    """[T, k] int32, global numbers of experts; -1 for none, as where a choice was dropped."""
    capacity: int | Array | None = None
    """This rank's rows for each expert are padded to at most this many (int: each, or int64 [E]); None: no padding."""

    @classmethod
    def of_dense(cls, probs: Tensor, routing_map: Tensor) -> Routing:
        """The routing of Megatron's form: probabilities [T, E] and the bool map [T, E] of choices; tokens may have
        different numbers of choices: k is the largest, at least 1, and the others have -1 in the rest."""
        chosen = routing_map.asnumpy()
        most = int(chosen.sum(axis=1).max(initial=1))
        experts = np.argsort(~chosen, axis=1, kind="stable")[:, :most].astype(np.int32)
        is_chosen = np.take_along_axis(chosen, experts, axis=1)
        weights = ops.gather_d(probs, 1, Tensor.from_numpy(experts))
        weights = weights * Tensor.from_numpy(is_chosen.astype(np.float32))
        return cls(weights, Tensor.from_numpy(np.where(is_chosen, experts, NONE).astype(np.int32)))

    def apart(self, experts: int) -> tuple[Routing, Tensor]:
        """(The routing with -1 in place of the choices of zero experts, whose numbers are from `experts` on; for each
        token the sum of its weights of zero experts, float32 [T], on the tape)."""
        numbers, (probs, others) = self.experts.asnumpy(), kernels.fork(self.probs)
        beyond = numbers >= experts
        weights = (others * Tensor.from_numpy(beyond.astype(np.float32))).sum(axis=-1)
        return self._replace(probs=probs, experts=Tensor.from_numpy(np.where(beyond, NONE, numbers))), weights

    def dense(self, experts: int) -> tuple[Tensor, Tensor]:
        """(Probabilities [T, E], on the tape, bool map [T, E] of choices): Megatron's form, for E = `experts`."""
        chosen = self.experts.asnumpy()[..., None] == np.arange(experts)
        probs = self.probs.expand_dims(-1) * Tensor.from_numpy(chosen.astype(np.float32))
        return probs.sum(1), Tensor.from_numpy(chosen.any(1))


class TokenIds(NamedTuple):
    """The ids of a micro-batch's tokens, by which hash layers look up experts, and the tokens' replayed experts
    (-1: the router chooses; None: it always does). With sequence parallelism they are those of all tensor-parallel
    ranks' positions."""

    ids: Array
    """Int32 [s, b]."""
    experts: Array | None = None
    """int32 [s, b, L, k], replayed choices in the L layers that have experts; -1: the router chooses. None: it always
    does."""

    def filled(self, length: int) -> TokenIds:
        """A copy padded at its end to `length` positions: with ids 0, and with -1 (the router chooses) as replayed
        experts."""
        behind = (0, length - len(self.ids))
        experts = self.experts
        if experts is not None:
            experts = np.pad(experts, (behind, *((0, 0),) * 3), constant_values=NONE)
        return TokenIds(np.pad(self.ids, (behind, (0, 0))), experts)


class TopKRouter(nn.Cell):
    """The router of one layer: scores of x W^T (W [E, h], whole on every rank), the best k experts of each token, or
    SparseMixer's two (drawn in training), and their weights. Replayed experts take the place of the best ones.

    In a hash layer a table gives the experts (--n-hash-layers). With a sequence that is cut between tensor-parallel
    regions each rank routes its own tokens. `layer_number` is global and starts at 1.
    """

    def __init__(self, config: ModelConfig, layer_number: int = 1, block: blocks.Router | None = None) -> None:
        super().__init__()
        block = blocks.Router.of(config) if block is None else block
        self.moe, self.layer_number = config.moe_config, layer_number
        self.rule = RoutingRule.of(self.moe)
        parameters = {name: make_parameter(*spec) for name, spec in block.parameters().items()}
        self.weight, self.bias = parameters["weight"], parameters.get("bias")
        untrained = {name: make_parameter(*spec) for name, spec in block.untrained().items()}
        self.expert_bias, self.tid2eid = untrained.get("expert_bias"), untrained.get("tid2eid")
        self.moves_bias = not config.lora_config.use_lora
        """Whether expert biases are moved after updates; not beside adapters, where the base model stays as it is."""
        for parameter in untrained.values():
            parameter.requires_grad = False
        self.outside = Boundary.of(config)
        self.copies = 1 if self.outside.cuts_sequence else parallel_state.get_tensor_model_parallel_world_size()
        self.dtype = self.moe.moe_router_dtype and type_of(ROUTER_DTYPES[self.moe.moe_router_dtype])
        sharing = "tp-cp" if self.outside.cuts_sequence else "cp"
        self.capacities: Callable[[int], Array] | None = None
        """A function from an even share's capacity to each expert's, int64 [E]; None: all have the same."""
        layers = decoder_layers_of_experts(config) if block.replays else []
        self.place = layers.index(layer_number - 1) if layer_number - 1 in layers else None
        """The index of this layer among those that have experts, for replayed choices; None: there are none."""
        self.losses = RouterLosses(config, layer_number, sharing, self.copies)

    def construct(self, hidden_states: Tensor, tokens: TokenIds | None = None) -> Routing:
        """[s, b, h] -> the routing of its s b tokens; its `dense` has Megatron's form. tokens: needed by hash layers
        (ValueError without them), and for replayed choices."""
        logits = self.gating(hidden_states)
        if SPARSE_MIXER in self.moe.balancing:
            probs, experts = self._sampled(logits)
        else:
            probs, experts = self._best(logits, tokens)
        self._report((TOKENS_CHOSEN, TOKENS_BEYOND), experts)
        capacity = self._capacity(experts.shape[0])
        if capacity is not None and np.min(capacity) < experts.shape[0]:
            by_position = self.moe.moe_token_drop_policy == "position"
            probs, experts = kernels.drop_over_capacity(probs, experts, capacity, by_position)
        self._report((TOKENS_ROUTED,), experts)
        return Routing(probs, experts, capacity if self.moe.moe_pad_expert_input_to_capacity else None)

    def _capacity(self, tokens: int) -> Any:
        """The most of this rank's tokens that each expert takes (int, or int64 [E]); None: all."""
        factor = self.moe.moe_expert_capacity_factor
        if factor is None or is_generating():
            return None
        capacity = get_capacity(tokens * self.rule.topk, self.weight.shape[0], factor)
        return capacity if self.capacities is None else self.capacities(capacity)

    def gating(self, hidden_states: Tensor) -> Tensor:
        """Logits [s, b, E] of hidden states [s, b, h], which in training are jittered first if that is configured and
        the balancing is not SparseMixer's; with forced balance random numbers in place of the logits."""
        epsilon, positions = self.moe.moe_input_jitter_eps, self.outside.positions(hidden_states.shape[0])
        if epsilon and self.training and SPARSE_MIXER not in self.moe.balancing:
            hidden_states = jitter(hidden_states, epsilon, self.layer_number, positions)
        if self.dtype is not None:
            hidden_states = kernels.cast(hidden_states, self.dtype)
        inside = self.outside.inside()
        logits = linear_with_grad_accumulation_and_async_allreduce(hidden_states, self.weight, self.bias, inside)
        if self.moe.moe_router_force_load_balancing:
            return random_logits(logits, self.layer_number, positions)
        return logits

    def _best(self, logits: Tensor, tokens: TokenIds | None) -> tuple[Tensor, Tensor]:
        balanced = self.rule.sinkhorn and self.training
        bias = None if self.rule.sinkhorn else self.expert_bias
        if self.tid2eid is None:
            experts = self._given(kernels.choose_experts(logits, self.rule, bias, balanced), tokens)
            self._record(experts, logits.shape[1])
        else:
            experts = self._of_table(logits.shape[0], tokens)
        if self.training:
            logits = self.losses(logits, experts)
        return kernels.routing_probabilities(logits, experts, self.rule), experts

    def _of_table(self, length: int, tokens: TokenIds | None) -> Tensor:
        """The hash table's experts for this rank's tokens, int32 [s b, k]. length: s. Raises ValueError without token
        ids."""
        if tokens is None:
            raise ValueError("--n-hash-layers: a layer whose experts are chosen by tokens is to be given their ids")
        assert self.tid2eid is not None
        own = self._own(tokens.ids, length).reshape(-1)
        return Tensor.from_numpy(array_of(self.tid2eid)[own].astype(np.int32))

    def _own(self, array: Array, length: int) -> Array:
        """This rank's `length` tokens, of an array [s, ...] with those of all tensor-parallel ranks together."""
        first = self.outside.group.rank * length if self.outside.cuts_sequence else 0
        return array[first : first + length]

    def _given(self, chosen: Tensor, tokens: TokenIds | None) -> Tensor:
        """The chosen experts [s b, k], with the batch's replayed choices, where it has some, in their place."""
        if self.place is None or tokens is None or tokens.experts is None:
            return chosen
        length = len(chosen) // tokens.experts.shape[1]
        given = self._own(tokens.experts, length)[:, :, self.place].reshape(chosen.shape)
        return Tensor.from_numpy(np.where(given == NONE, array_of(chosen), given).astype(np.int32))

    def _record(self, experts: Tensor, batch: int) -> None:
        """Give the RoutingRecord, if one is asked for, the choices for all tensor-parallel ranks' tokens."""
        record = recording()
        if record is not None:
            whole = self.outside.group.all_gather(experts) if self.outside.cuts_sequence else experts
            record.chosen(self.layer_number, whole.asnumpy().reshape(-1, batch, experts.shape[1]))

    def _sampled(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        positions = self.outside.positions(logits.shape[0])
        numbers = draws(logits.shape, self.layer_number, positions) if self.training else None
        if self.training:
            logits = self.losses(logits)
        return kernels.sample_experts(logits, self.moe.sampled_within, numbers)

    def _report(self, names: tuple[str, ...], experts: Tensor) -> None:
        figures = current()
        if figures is not None:
            load = kernels.load_of_experts(experts, 1, self.weight.shape[0])
            for name in names:
                figures.add(name, load, self.layer_number, share=1.0 / self.copies)
