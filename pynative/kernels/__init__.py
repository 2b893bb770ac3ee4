"""The operators that a GPT model is made of: one name, two implementations.

`host` computes with numpy inside `autograd.Function` (the default on a CPU), `ops` with MindSpore operators (what an
Ascend runs). `use` selects for the whole process, like a device: it is a property of the hardware, not of a model.
`fuse` then chooses the form of single operators of `ops`: composed of many, or one that keeps little for its backward.

Letters in shapes: s sequence, b batch, h hidden, n heads, g key/value groups, d head size, f feed-forward size,
i inputs, o outputs, v vocabulary, t tensor-parallel size; `...` any leading axes. Activations are [s, b, ...] tensors
of float32, float16 or bfloat16. Operators are recorded on the tape unless said otherwise; gradients of parameters go
where `autograd.add_weight_gradient` puts them. Dropout keys are tuples of non-negative integers (`dropout.py`).
"""

from collections.abc import Collection, Sequence
from importlib import import_module
from types import SimpleNamespace

import mindspore
from mindspore import Tensor

from pynative.kernels.block import Partial, Scores
from pynative.kernels.dropout import Key, Rows
from pynative.kernels.linear import Linear

MODULES = {
    ("host", "CPU"): "pynative.kernels.host",
    ("ops", "CPU"): "pynative.kernels.ops",
    ("ops", "Ascend"): "pynative.kernels.ops.fused",
}
"""Which module has the operators of an implementation on a device; a device's first entry is its default."""

SWITCHED = ("attention", "rotary", "bias_activation", "rms_norm")
"""Operators of which `ops` has two forms; `host` has only the frugal one. Of bias_activation it is swiglu's."""

FORMS = {("ops", "CPU"): "pynative.kernels.ops.frugal", ("ops", "Ascend"): "pynative.kernels.ops.fused"}
"""Which module has the switched operators' other form: one fused kernel, or on a CPU the same with little memory."""

_active: SimpleNamespace
_selected: tuple[str, str]


def use(implementation: str | None = None, threads: int | None = None) -> None:
    """Select the implementation for this process; call it before any operator (without a call: the host's, 1 thread).

    implementation: "host", "ops", or None for the device's own: host on a CPU, ops on an Ascend.
    threads: CPU threads that host kernels use, the calling one included (None: 1).
    """
    global _selected
    device = mindspore.get_context("device_target")
    offered = [name for name, target in MODULES if target == device]
    chosen = implementation or next(iter(offered), "none")
    if chosen not in offered:
        raise ValueError(f"kernels {chosen!r} don't exist for {device}: choose one of {', '.join(offered) or 'none'}")
    _selected = (chosen, device)
    fuse(())
    _active.prepare(1 if threads is None else threads)


def fuse(operators: Collection[str], input_layout: str = "SBH") -> None:
    """Give these of the SWITCHED operators their fused or frugal form, the others the composed one; `use` comes first.

    input_layout: how a fused attention kernel wants its heads: SBH, BSH, BSND or BNSD.
    """
    global _active
    unknown = set(operators) - set(SWITCHED)
    assert not unknown, f"no switch for {unknown}"
    forms = import_module(FORMS[_selected]).forms(input_layout) if _selected in FORMS else {}
    chosen = {name: forms[name] for name in operators if name in forms}
    _active = SimpleNamespace(**{**vars(import_module(MODULES[_selected])), **chosen})


def active() -> str:
    """Name of the implementation in use."""
    return _selected[0]


# Linear layers -------------------------------------------------------------------------------------------------------


def linear_forward(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., i], weight [o, i], bias [o] -> x weight^T + bias [..., o]. Not recorded."""
    return _active.linear_forward(x, weight, bias)


def linear_input_gradient(dy: Tensor, weight: Tensor) -> Tensor:
    """dy [..., o], weight [o, i] -> [..., i]. Not recorded."""
    return _active.linear_input_gradient(dy, weight)


def linear_weight_gradient(dy: Tensor, x: Tensor, out: Tensor | None = None) -> Tensor:
    """dy [..., o], x [..., i] -> [o, i], written into `out` when given. Not recorded."""
    return _active.linear_weight_gradient(dy, x, out)


def bias_gradient(dy: Tensor, out: Tensor | None = None) -> Tensor:
    """dy [..., o] -> its sum over the leading axes [o], written into `out` when given. Not recorded."""
    return _active.bias_gradient(dy, out)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., i], weight [o, i], bias [o] -> [..., o]."""
    return Linear.apply(x, weight, bias)


# Norms and activations -----------------------------------------------------------------------------------------------


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, epsilon: float, zero_centered: bool = False) -> Tensor:
    """Layer norm over the last axis of x [..., h] (h = d for head norms); weight, bias [h].

    zero_centered: the weight is stored minus 1 (Megatron's --apply-layernorm-1p).
    """
    return _active.layer_norm(x, weight, bias, epsilon, zero_centered)


def rms_norm(x: Tensor, weight: Tensor, epsilon: float, zero_centered: bool = False) -> Tensor:
    """x / sqrt(mean(x^2) + epsilon) * weight over the last axis of x [..., h]; weight [h]."""
    return _active.rms_norm(x, weight, epsilon, zero_centered)


def bias_activation(x: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    """activation(x + bias): x [..., f] -> [..., f]; "swiglu": x [..., 2f] = [gate | up] -> silu(gate) * up [..., f].

    activation: "gelu_tanh", "gelu_erf", "silu", "relu", "squared_relu" or "swiglu".
    """
    return _active.bias_activation(x, bias, activation)


# Attention -----------------------------------------------------------------------------------------------------------


def split_qkv(qkv: Tensor, groups: int, heads_per_group: int, head_size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Megatron's fused rows [s, b, g * (n/g + 2) * d] -> q [s, b, n, d], k [s, b, g, d], v [s, b, g, d].

    Within a group come its n/g query heads, then its key, then its value.
    """
    return _active.split_qkv(qkv, groups, heads_per_group, head_size)


def rotary(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """Rotate the first r elements of each head of x [s, b, n, d] by angles whose cos and sin are [s, r] or [s, b, r].

    Element i is paired with i + r/2 or, `interleaved`, 2i with 2i + 1; the angles' last axis is laid out likewise.
    """
    return _active.rotary(x, cos, sin, interleaved)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    causal: bool = True,
    mask: Tensor | None = None,
    dropout_rate: float = 0.0,
    dropout_key: Key | None = None,
    head_offset: int = 0,
) -> Tensor:
    """softmax(scale q k^T, masked scores -10000) v: q [s, b, n, d], k and v [s, b, g, d] -> [s, b, n * d].

    Query head j uses group j // (n/g). mask: bool [b or 1, 1, s, s], True = masked out; given, it alone decides and
    `causal` is not looked at. head_offset: number of the first head among all ranks' heads, for dropout.
    """
    return _active.attention(
        q, k, v, scale=scale, causal=causal, mask=mask,
        dropout_rate=dropout_rate, dropout_key=dropout_key or (), head_offset=head_offset,
    )  # fmt: skip


def attention_block(q: Tensor, kv: Tensor, scores: Scores, partial: Partial | None = None) -> Partial:
    """Attention of the last queries of q [s, b, n, d] with the first keys and values of kv [2, s, b, g, d].

    `scores` says how many those are. The result is put together with `partial`, which may be overwritten: what the
    same q gave with other keys. The first block must have all queries. Not recorded.
    """
    return _active.attention_block(q, kv, scores, partial)


def attention_block_gradient(
    q: Tensor, kv: Tensor, dout: Tensor, partial: Partial, scores: Scores, dq: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(dq [s, b, n, d] with this block's part added, dkv [2, s, b, g, d] of this block alone), both float32.

    dout [s, b, n * d]; partial: the result over all blocks; dq: what the blocks before gave, which may be overwritten;
    the first block must have all queries. Not recorded.
    """
    return _active.attention_block_gradient(q, kv, dout, partial, scores, dq)


def join_kv(k: Tensor, v: Tensor) -> Tensor:
    """k and v [s, b, g, d] as one tensor [2, s, b, g, d]. Not recorded."""
    return _active.join_kv(k, v)


def split_kv(kv: Tensor) -> tuple[Tensor, Tensor]:
    """kv [2, s, b, g, d] as two tensors [s, b, g, d]. Not recorded."""
    return _active.split_kv(kv)


def pack_heads(xs: Sequence[Tensor], parts: int, times: Sequence[int]) -> Tensor:
    """Tensors [s, b, n_i, ...] as one, [parts * s, b, w], whose j-th s rows are the j-th parts of all the n_i.

    Before they are cut, heads are repeated in place: times[i] copies of each of xs[i]. Not recorded.
    """
    return _active.pack_heads(xs, parts, times)


def unpack_heads(
    packed: Tensor, parts: int, shapes: Sequence[tuple[int, ...]], times: Sequence[int]
) -> tuple[Tensor, ...]:
    """The transpose of `pack_heads`: [parts * s, b, w] -> tensors [s, b, *shapes[i]], copies of a head added up.

    Not recorded.
    """
    return _active.unpack_heads(packed, parts, shapes, times)


# Residual branches and dropout ---------------------------------------------------------------------------------------


def fork(x: Tensor) -> tuple[Tensor, Tensor]:
    """x for each of two consumers; their gradients are added here instead of by the tape's own operator."""
    return _active.fork(x)


def bias_dropout_add(
    x: Tensor,
    bias: Tensor | None,
    residual: Tensor | None = None,
    rate: float = 0.0,
    key: Key | None = None,
    rows: Rows | None = None,
) -> Tensor:
    """residual + dropout(x + bias): x, residual [s, ..., h], bias [h]. `rows`: see `dropout`."""
    return _active.bias_dropout_add(x, bias, residual, rate, key or (), rows)


def dropout(x: Tensor, rate: float, key: Key, rows: Rows | None = None) -> Tensor:
    """x [s, ..., h] * mask / (1 - rate), the mask of `key` (`dropout_mask`); x itself at rate 0.

    rows: the (start, stop) global sequence positions that x holds, in its order; None: all, from 0.
    """
    return _active.dropout(x, rate, key, rows) if rate else x


# Pieces --------------------------------------------------------------------------------------------------------------


def piece(x: Tensor, axis: int, index: int, count: int) -> Tensor:
    """The index-th of `count` equal parts of x along `axis`, a copy. Not recorded."""
    return _active.piece(x, axis, index, count)


def take_columns(x: Tensor, ranges: Sequence[range]) -> Tensor:
    """x [..., w] -> these columns of it, one range after another. Not recorded."""
    return _active.take_columns(x, ranges)


def place_columns(x: Tensor, ranges: Sequence[range], width: int) -> Tensor:
    """The other way: x's columns at `ranges`, ascending, of zeros [..., width]. Not recorded."""
    return _active.place_columns(x, ranges, width)


# Vocabulary ----------------------------------------------------------------------------------------------------------


def embedding(ids: Tensor, weight: Tensor, first_id: int = 0) -> Tensor:
    """ids int [...], weight [v/t, h], the rows of ids first_id ... -> [..., h]; zeros for ids of other ranks."""
    return _active.embedding(ids, weight, first_id)


def softmax_statistics(logits: Tensor, target: Tensor, first_id: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What cross entropy needs of this rank's columns: logits [..., v/t], target int [...]. Not recorded.

    Returns exp(logits - maximum) [..., v/t], and [...] each: the rows' maximum, the exponentials' sum, the logit of
    the target, 0 where the target's column is another rank's. All float32.
    """
    return _active.softmax_statistics(logits, target, first_id)


def cross_entropy_addends(
    own_maximum: Tensor, maximum: Tensor, own_sum: Tensor, target_logit: Tensor
) -> tuple[Tensor, Tensor]:
    """The rank's exponentials' factor exp(own_maximum - maximum) [...], and what all ranks add up [2, ...]:
    the sum of its exponentials times that factor, and the target's logit. Not recorded."""
    return _active.cross_entropy_addends(own_maximum, maximum, own_sum, target_logit)


def cross_entropy_loss(added: Tensor, maximum: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    """added [2, ...], the sum over ranks of `cross_entropy_addends` -> each token's loss [...], and what the rank's
    exponentials are multiplied with to be probabilities [...]. Not recorded."""
    return _active.cross_entropy_loss(added, maximum, factor)


def cross_entropy_gradient(
    exponentials: Tensor, probability_factor: Tensor, target: Tensor, first_id: int, dloss: Tensor
) -> Tensor:
    """dloss * (probabilities - 1 at the target's column). Overwrites `exponentials`.

    exponentials [..., v/t] of `softmax_statistics`; probability_factor, target, dloss [...]. Not recorded.
    """
    return _active.cross_entropy_gradient(exponentials, probability_factor, target, first_id, dloss)


def masked_mean(losses: Tensor, mask: Tensor | None, count: float | None = None) -> Tensor:
    """sum(losses * mask) / max(sum(mask), 1), a scalar; the plain mean without a mask. Both [...], mask any type.

    count: divide by it instead of sum(mask), because others have more of the tokens.
    """
    return _active.masked_mean(losses, mask, count)


def sequence_first(x: Tensor) -> Tensor:
    """[b, s] -> [s, b], contiguous: token ids, labels, masks. Not recorded."""
    return _active.sequence_first(x)


# Flat buffers: in place, not recorded --------------------------------------------------------------------------------


def adamw_(
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    *,
    learning_rate: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    weight_decay: float,
    step: int,
    grad_scale: float = 1.0,
) -> None:
    """AdamW (Loshchilov & Hutter 2019) on flat float32 tensors of one shape; `step` counts from 1.

    param <- param (1 - learning_rate weight_decay) - learning_rate m / (sqrt(v) + epsilon), m and v the averages of
    grad_scale * grad and of its square, divided by 1 - beta^step.
    """
    _active.adamw_(
        param, grad, exp_avg, exp_avg_sq, learning_rate=learning_rate, beta1=beta1, beta2=beta2, epsilon=epsilon,
        weight_decay=weight_decay, step=step, grad_scale=grad_scale,
    )  # fmt: skip


def sgd_(
    param: Tensor,
    grad: Tensor,
    momentum_buffer: Tensor,
    *,
    learning_rate: float,
    momentum: float,
    weight_decay: float,
    grad_scale: float = 1.0,
) -> None:
    """buffer <- momentum * buffer + grad_scale * grad + weight_decay * param; param <- param - learning_rate * buffer.

    Flat float32 tensors of one shape; the buffer starts at zero.
    """
    _active.sgd_(
        param, grad, momentum_buffer, learning_rate=learning_rate, momentum=momentum, weight_decay=weight_decay,
        grad_scale=grad_scale,
    )  # fmt: skip


def squared_norm(x: Tensor) -> float:
    """Sum of squares of x, summed over chunks in float64."""
    return _active.squared_norm(x)


def is_finite(x: Tensor) -> bool:
    """Whether x has neither infinities nor NaN."""
    return _active.is_finite(x)


def scale_(x: Tensor, factor: float) -> None:
    """x <- x * factor."""
    _active.scale_(x, factor)


def add_(x: Tensor, y: Tensor) -> None:
    """x <- x + y, of one shape; y may have another type."""
    _active.add_(x, y)


def fill_(x: Tensor, value: float) -> None:
    """x <- value."""
    _active.fill_(x, value)


_selected = ("host", "CPU")
fuse(())
_active.prepare(threads=1)
