"""Shared parts of mixers that keep a state: parameters by channel, the exchange over context parallelism, and states of
texts that are being generated.

s sequence, b batch, c channels, w taps of the convolution; n heads of values, m of queries and keys, d and e their
sizes.
"""

from collections.abc import Sequence

import numpy as np
from mindspore import Parameter, Tensor, nn

from parallel_core import blocks
from parallel_core.attention.recurrence import RecurrenceForm
from parallel_core.context import ContextLayout, as_array
from parallel_core.numerics.dtypes import Array
from parallel_core.recompute.plan import CellRecompute
from pynative import kernels, key_value_cache, parallel_state
from pynative.context_parallel.batch import context_shard
from pynative.context_parallel.features import features_to_sequence, of_rank, sequence_to_features
from pynative.memory.arrays import array_type
from pynative.parameter import make_parameter
from pynative.tape.autograd import Moved
from pynative.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from pynative.tensor_parallel.recompute import keep_collectives, run_part


class ShortConvolution(nn.Cell):
    """The weight [c, 1, w], c the channels of this tensor-parallel rank, and bias [c] or None of a short convolution;
    mixers compute with them (`convolved`)."""

    def __init__(self, block: blocks.ShortConvolution) -> None:
        super().__init__()
        parameters = {name: make_parameter(*spec) for name, spec in block.parameters().items()}
        self.weight, self.bias = parameters["weight"], parameters.get("bias")


class SequenceExchange:
    """The exchange, over the context-parallel group, between this rank's shard of a sequence and its share of the
    features of the whole sequence."""

    def __init__(self) -> None:
        self.group = parallel_state.get_context_parallel_group()
        self.layout: ContextLayout = context_shard().layout
        self._made: dict[tuple[int, ...], tuple[Array, Array]] = {}

    def enter(self, x: Tensor, widths: Sequence[int]) -> Tensor:
        """x [s / cp, b, f] of this rank's shard, f features in fused parts of these widths -> this rank's share of each
        part for the whole sequence, [s, b, f / cp]."""
        return sequence_to_features(x, widths, self.group, self.layout)

    def leave(self, x: Tensor) -> Tensor:
        """x [s, b, f / cp], this rank's share of features that are one part, of the whole sequence -> all f features
        of this rank's shard, [s / cp, b, f]."""
        return features_to_sequence(x, self.group, self.layout)

    def share(self, parameter: Parameter, widths: Sequence[int]) -> Tensor:
        """The rows of a parameter that belong to this rank's share of fused features of these widths; the parameter
        itself in a group of one. Their gradient reaches the parameter."""
        if self.group.size == 1:
            return parameter
        own, places = self._places(tuple(widths))
        row = tuple(parameter.shape[1:])
        return Moved.apply(
            parameter,
            lambda x: kernels.gather_rows(x, own, row),
            lambda dy: kernels.gather_rows(dy, places, row),
        )

    def _places(self, widths: tuple[int, ...]) -> tuple[Array, Array]:
        """(Indices of this rank's rows, for each row its index among those or -1), for fused parts of these widths."""
        if widths not in self._made:
            self._made[widths] = self._make_places(widths)
        return self._made[widths]

    def _make_places(self, widths: tuple[int, ...]) -> tuple[Array, Array]:
        own = as_array(tuple(of_rank(widths, self.group.rank, self.group.size)))
        places = np.full(sum(widths), -1, np.int32)
        places[own] = np.arange(len(own), dtype=np.int32)
        return own, places


def _lengths(cache: key_value_cache.Cache) -> Array | None:
    """The number of tokens of each text [b] in a first forward; None in a later one, where each has one new token."""
    return None if cache.continues else cache.lengths


def convolved(layer: int, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """silu of the causal convolution of each channel of x [s, b, c] by itself, [s, b, c], with weight [c, 1, w] and
    bias [c] or None. In generation with a cache x follows the layer's last inputs in the cache, where its own are then
    kept."""
    cache = key_value_cache.current()
    if cache is None:
        return kernels.short_convolution(x, weight, bias)
    reach = weight.shape[2] - 1
    before = cache.state(layer, "inputs", (reach, *x.shape[1:]), array_type(x.dtype))
    y, last = kernels.continued_convolution(x, weight, bias, before, _lengths(cache))
    cache.keep_state(layer, "inputs", last)
    return y


def recurrent(
    layer: int, q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, rate: Tensor | None, form: RecurrenceForm
) -> Tensor:
    """The recurrence `form` over q, k [s, b, m, d], v [s, b, n, e], log_decay and rate float32 [s, b, n] (rate None: 1)
    -> [s, b, n, e]. In generation with a cache it begins with the layer's state in the cache, where the new state is
    then kept."""
    cache = key_value_cache.current()
    if cache is None:
        return kernels.linear_recurrence(q, k, v, log_decay, rate, form)
    batch, heads, width = v.shape[1:]
    before = cache.state(layer, "state", (batch, heads, q.shape[-1], width), np.dtype(np.float32))
    out, last = kernels.continued_recurrence(q, k, v, log_decay, rate, form, before, _lengths(cache))
    cache.keep_state(layer, "state", last)
    return out


def check_no_mask(*masking: object) -> None:
    """Raise ValueError if one of the arguments, a mask or document starts for a recurrence, is not None: it knows the
    order of tokens alone."""
    if any(given is not None for given in masking):
        raise ValueError("a layer that keeps a state knows the causal order alone: leave masks and document starts out")


class RecurrentMixer(nn.Cell):
    """The base of cells of a `blocks.RecurrentMixer`, a mixer that keeps a state: a subclass makes the parameters, then
    calls `set_up`, and computes what lies between in_proj and out_proj (`_mix`)."""

    in_proj: ColumnParallelLinear
    out_proj: RowParallelLinear

    def set_up(self, block: blocks.RecurrentMixer, layer_number: int, recomputed: CellRecompute) -> None:
        """Set what follows from the block: widths of this rank's parts, and the exchange over context parallelism; and
        have the linears that `recomputed` names keep their collectives' results."""
        self.layer_number, self.recomputed, self.recurrence = layer_number, recomputed, block.recurrence
        self.exchange = SequenceExchange()
        tensor = parallel_state.get_tensor_model_parallel_world_size()
        self.widths = tuple(width // tensor for width in block.in_proj.widths)
        self.mixed = tuple(width // tensor for width in block.mixed)
        self.sharing = tensor * self.exchange.group.size  # number of ranks among which the features are divided
        keep_collectives(self)

    def construct(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        document_starts: Array | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """[s, b, h] (with sequence parallelism [s/t, b, h]) -> (the same shape, the bias [h] still to be added or
        None). Raises ValueError for a mask or document starts."""
        check_no_mask(attention_mask, document_starts)
        rows, _ = run_part(self, "in_proj", self.in_proj, hidden_states)
        out = run_part(self, "mixing", self._mix, self._entered(rows))
        return run_part(self, "out_proj", self.out_proj, self.exchange.leave(out))

    def _entered(self, rows: Tensor) -> Tensor:
        """in_proj's output [s / cp, b, f] for this rank's shard of the sequence -> its share of the f features for
        whole sequences, [s, b, f / cp]."""
        return self.exchange.enter(rows, self.widths)

    def _mix(self, rows: Tensor) -> Tensor:
        """This rank's share of in_proj's features, [s, b, ...] of whole sequences -> its share of those that out_proj
        takes, [s, b, ...] of whole sequences."""
        raise NotImplementedError
