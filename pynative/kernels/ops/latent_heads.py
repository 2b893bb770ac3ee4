"""Features and heads of latent attention (DeepSeek-V2, 2024) taken apart and put together, of MindSpore operators."""

from collections.abc import Sequence
from typing import Any

from mindspore import Tensor, ops

from pynative.kernels.ops.elementwise import widened_on_cpu
from pynative.tape.autograd import Function


class _SplitFeatures(Function):
    """The tape's own backward would make tensors as wide as x, zero beside their part, and add them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, widths: Sequence[int]) -> tuple[Tensor, ...]:
        return tuple(part.contiguous() for part in ops.split(x, widths, -1))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return ops.cat(gradients, -1), None


def split_features(x: Tensor, widths: tuple[int, ...]) -> tuple[Tensor, ...]:
    results: tuple[Tensor, ...] = _SplitFeatures.apply(x, widths)
    return results


def as_heads(x: Tensor, heads: int) -> Tensor:
    return x.reshape(*x.shape[:-1], heads, -1)


class _LatentKeysValues(Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, key: Tensor, heads: int, value_size: int) -> tuple[Tensor, ...]:
        both = rows.reshape(*rows.shape[:-1], heads, -1)
        plain, values = ops.split(both, (both.shape[-1] - value_size, value_size), -1)
        ctx.widths = plain.shape[-1], key.shape[-1]
        return ops.cat((plain, ops.tile(key, (1, 1, heads, 1))), -1), values.contiguous()

    @staticmethod
    def backward(ctx: Any, dk: Tensor, dv: Tensor) -> tuple[Tensor | None, ...]:
        plain, shared = ops.split(dk, ctx.widths, -1)
        rows = ops.cat((plain, dv), -1)
        return rows.reshape(*rows.shape[:2], -1), shared.sum(axis=2, keepdims=True), None, None


@widened_on_cpu("rows")
def latent_keys_values(rows: Tensor, key: Tensor, heads: int, value_size: int) -> tuple[Tensor, Tensor]:
    results: tuple[Tensor, Tensor] = _LatentKeysValues.apply(rows, key, heads, value_size)
    return results
