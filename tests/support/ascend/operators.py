"""Doubles of the Ascend operators in pynative/kernels/ascend, flash attention aside.

Each docstring says where its rules come from: `ops.<name>` is the operator's own documentation in MindSpore 2.10,
`aclnn...` CANN's documentation of the kernel beneath (8.0 - 8.2). Type and shape rules that MindSpore's definition
checks by itself when it is called (`definitions.defined`) are not repeated.
"""

import mindspore
from mindspore import Tensor, mint, ops
from mindspore.ops.auto_generate import AdamW, GroupedMatmulV4

from pynative.kernels.contract.flat_buffers import AdamStep
from pynative.kernels.ops import optimizer, widened
from tests.support.ascend.definitions import SIXTEEN_BITS, Double, require, require_tensors

HALVES, NEIGHBOURS = 0, 1
COMPUTED = widened.OPERATORS
"""The operators by which the doubles compute: in float32, rounded once, as the kernels do."""


def rms_norm(x: Tensor, gamma: Tensor, epsilon: float = 1e-6) -> tuple[Tensor, Tensor]:
    """ops.rms_norm: x and gamma of one type of three; epsilon a float in (0, 1]; gives (y, 1 / deviation)."""
    require_tensors("RmsNorm", x=x, gamma=gamma)
    require(x.dtype == gamma.dtype, f"RmsNorm: x is {x.dtype}, gamma {gamma.dtype}")
    require(type(epsilon) is float and 0 < epsilon <= 1, f"RmsNorm: epsilon {epsilon!r}")
    deviation = ops.rsqrt(ops.mean(ops.square(x.astype(mindspore.float32)), -1, True) + epsilon)
    return COMPUTED["rms_norm"](x, gamma, epsilon), deviation


def layer_norm(
    input: Tensor, normalized_shape: tuple[int, ...], weight: Tensor | None = None, bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:  # fmt: skip
    """mint.nn.functional.layer_norm: eps a float. aclnnLayerNorm: weight and bias of one type, input's or float32."""
    require_tensors("LayerNorm", input=input, weight=weight, bias=bias)
    require(type(eps) is float, f"LayerNorm: eps {eps!r}")
    assert weight is not None and bias is not None and len(normalized_shape) == 1, "the double knows no other form"
    require(
        weight.dtype == bias.dtype and weight.dtype in (input.dtype, mindspore.float32),
        f"LayerNorm: input is {input.dtype}, weight {weight.dtype}, bias {bias.dtype}",
    )
    return COMPUTED["layer_norm"](input, weight, bias, eps)


def gelu(input: Tensor, *, approximate: str = "none") -> Tensor:
    """mint.nn.functional.gelu: approximate "none" or "tanh"."""
    require_tensors("Gelu", input=input)
    return COMPUTED["bias_activation"](input, None, {"none": "gelu_erf", "tanh": "gelu_tanh"}[approximate])


def swiglu(input: Tensor, dim: int = -1) -> Tensor:
    """ops.swiglu: the axis divides by 2. aclnnSwiGlu: at least one axis."""
    require_tensors("SwiGlu", input=input)
    assert dim in (-1, input.ndim - 1), "the double knows no other axis"
    return COMPUTED["bias_activation"](input, None, "swiglu")


def rotary_position_embedding(x: Tensor, cos: Tensor, sin: Tensor, mode: int = 0) -> Tensor:
    """ops.rotary_position_embedding: 4 axes, one type, d even and below 896, b and n below 1000; angles [s, 1, 1, d]
    for x [s, b, n, d], or in mode 0 also [s, b, 1, d] and [s, b, n, d]. Values in [-1, 1].
    """
    require_tensors("RotaryPositionEmbedding", x=x, cos=cos, sin=sin)
    s, b, n, d = x.shape
    require(x.dtype == cos.dtype == sin.dtype, f"rotary: x is {x.dtype}, cos {cos.dtype}, sin {sin.dtype}")
    require(d % 2 == 0 and d < 896, f"rotary: head size {d} is odd or above 895")
    require(b < 1000 and n < 1000, f"rotary: batch {b}, heads {n}")
    layouts = {HALVES: [(s, 1, 1, d), (s, b, 1, d), (s, b, n, d)], NEIGHBOURS: [(s, 1, 1, d)]}
    require(mode in layouts, f"rotary: mode {mode}")
    require(cos.shape == sin.shape and cos.shape in layouts[mode], f"rotary: x {x.shape}, cos {cos.shape}, mode {mode}")
    return COMPUTED["rotary"](x, cos, sin, mode == NEIGHBOURS)


def adamw(
    self: AdamW, var: Tensor, m: Tensor, v: Tensor, max_v: Tensor, gradient: Tensor, step: Tensor, lr: float,
    beta1: float, beta2: float, decay: float, eps: float, amsgrad: bool = False, maximize: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """AdamW of auto_generate: var float16 or float32, all of var's shape. aclnnApplyAdamWV2 (Atlas A2, A3): m, v, and
    the gradient that we give, of var's type; step float32 or int64 of shape (1,). mint.optim.AdamW starts its step at 0
    for the first update and passes v as max_v without amsgrad.
    """
    require_tensors("ApplyAdamWV2", var=var, m=m, v=v, max_v=max_v, gradient=gradient)
    require(var.dtype in (mindspore.float16, mindspore.float32), f"AdamW: var is {var.dtype}")
    require(len({x.dtype for x in (var, m, v, gradient)}) == 1, "AdamW: var, m, v and gradient differ in type")
    require(isinstance(step, Tensor) and step.shape == (1,), f"AdamW: step has shape {getattr(step, 'shape', None)}")
    require(step.dtype in (mindspore.float32, mindspore.int64), f"AdamW: step is {step.dtype}")
    require(all(type(x) is float for x in (lr, beta1, beta2, decay, eps)), "AdamW: lr, betas, decay and eps are floats")
    require(0 <= beta1 < 1 and 0 <= beta2 < 1 and eps >= 0 and lr >= 0 and decay >= 0, "AdamW: settings out of range")
    assert not amsgrad and not maximize and max_v is v, "the double knows no other form"
    update = int(step.asnumpy()[0]) + 1
    require(update >= 1, "AdamW: the first update has step 0")
    settings = AdamStep(learning_rate=lr, beta1=beta1, beta2=beta2, epsilon=eps, weight_decay=decay, step=update)
    optimizer.adam_(var, gradient, m, v, settings)
    return var, m, v


def grouped_matmul(
    self: GroupedMatmulV4, x: list[Tensor], weight: list[Tensor], bias: None = None, scale: None = None,
    offset: None = None, antiquant_scale: None = None, antiquant_offset: None = None, pre_token_scale: None = None,
    group_list: None = None, activation_input: None = None, activation_quant_scale: None = None,
    activation_quant_offset: None = None, split_item: int = 0, group_type: int = -1, group_list_type: int = 0,
    act_type: int = 0, output_dtype: None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """grouped_matmul_v4 of auto_generate, its first two tables of limits: split_item 0 with group_type -1 takes two
    lists of one length, the right ones of two axes, of one 16-bit type. aclnnGroupedMatmulV4: at most 128 of each, last
    axes below 65536, left ones as they lie in memory.
    """
    quantized = (scale, offset, antiquant_scale, antiquant_offset, pre_token_scale)
    unused = (*quantized, bias, group_list, activation_input, activation_quant_scale, activation_quant_offset)
    assert (split_item, group_type, group_list_type, act_type, output_dtype) == (0, -1, 0, 0, None), "another form"
    assert all(each is None for each in unused), "the double knows no other form"
    require(len(x) == len(weight), f"GroupedMatmul: {len(x)} and {len(weight)} matrices")
    require(1 <= len(x) <= 128, f"GroupedMatmul: {len(x)} products")
    for left, right in zip(x, weight, strict=True):
        require_tensors("GroupedMatmul", x=left, weight=right)
        require(left.ndim == right.ndim == 2, f"GroupedMatmul: {left.shape} times {right.shape}")
        require(max(left.shape[1], right.shape[1]) < 65536, f"GroupedMatmul: {left.shape} times {right.shape}")
        require(left.is_contiguous(), "GroupedMatmul: a left side is a view of something transposed")
    types = {each.dtype for each in (*x, *weight)}
    require(len(types) == 1 and types <= set(SIXTEEN_BITS), f"GroupedMatmul: {types}")
    return tuple(COMPUTED["linear_input_gradient"](*pair) for pair in zip(x, weight, strict=True))


DOUBLES = (
    Double(ops, "rms_norm", rms_norm),
    Double(mint.nn.functional, "layer_norm", layer_norm),
    Double(mint.nn.functional, "gelu", gelu),
    Double(ops, "swiglu", swiglu),
    Double(ops, "rotary_position_embedding", rotary_position_embedding),
    Double(AdamW, "__call__", adamw),
    Double(GroupedMatmulV4, "__call__", grouped_matmul),
)
