"""Latent attention's features and heads (DeepSeek-V2, 2024) taken apart and joined, of MindSpore operators."""

from mindspore import Tensor, ops

from pynative.kernels.ops.elementwise import widened_on_cpu
from pynative.tape.autograd import Moved


def split_features(x: Tensor, widths: tuple[int, ...]) -> tuple[Tensor, ...]:
    # The tape's own backward would make one zero-padded tensor as wide as x for each part, and add them.
    return Moved.apply(
        x,
        lambda x: tuple(part.contiguous() for part in ops.split(x, widths, -1)),
        lambda *gradients: ops.cat(gradients, -1),
    )


def as_heads(x: Tensor, heads: int) -> Tensor:
    return x.reshape(*x.shape[:-1], heads, -1)


@widened_on_cpu("rows")
def latent_keys_values(rows: Tensor, key: Tensor, heads: int, value_size: int) -> tuple[Tensor, Tensor]:
    width, plain = key.shape[-1], rows.shape[-1] // heads - value_size

    def move(rows: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        keys, values = ops.split(rows.reshape(*rows.shape[:-1], heads, -1), (plain, value_size), -1)
        return ops.cat((keys, ops.tile(key, (1, 1, heads, 1))), -1), values.contiguous()

    def transpose(dk: Tensor, dv: Tensor) -> tuple[Tensor, Tensor]:
        keys, shared = ops.split(dk, (plain, width), -1)
        return ops.cat((keys, dv), -1).reshape(*dk.shape[:2], -1), shared.sum(axis=2, keepdims=True)

    return Moved.apply(rows, key, move, transpose)
