"""Tensor-parallel linears with a low-rank adapter of their own, for scripts ("LoRA", Hu et al., 2021).

A model of the configuration gets its adapters by --lora-target-modules, in its own linears.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from parallel_core.blocks import Adapter, Linear
from parallel_core.initial_values import by_name
from pynative.tensor_parallel.layers import (
    ColumnParallelLinear,
    Initial,
    LinearArguments,
    ParallelLinear,
    RowParallelLinear,
    linear_block,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack


class _WithAdapter(ParallelLinear):
    """A linear whose weight and bias are frozen, y, plus a trained adapter: y + (lora_alpha / lora_rank)
    B(A(dropout(x))). block: as in `ParallelLinear`; ValueError for one that has an adapter already."""

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        lora_rank: int = 8,
        lora_alpha: float = 32.0,
        lora_dropout: float = 0.0,
        lora_a_init: Initial = "normal",
        lora_b_init: Initial = "zeros",
        block: Linear | None = None,
        **common: Unpack[LinearArguments],
    ) -> None:
        std = common["config"].initial_std
        block = linear_block(self.cut_axis, input_size, output_size, **common) if block is None else block
        if block.adapter is not None:
            raise ValueError(f"{type(self).__name__}: block has an adapter of its own; pass one that has none")
        adapter = Adapter(
            input_size,
            output_size,
            self.cut_axis,
            block.parts,
            lora_rank,
            lora_alpha,
            lora_dropout,
            by_name(lora_a_init or "normal", std),
            block.dtype,
            "tp",
            block.widths,
            block.unit,
            initial_b=by_name(lora_b_init or "zeros", std),
        )
        super().__init__(input_size, output_size, block=replace(block, adapter=adapter), **common)
        for parameter in (self.weight, self.bias):
            if parameter is not None:
                parameter.requires_grad = False


class ColumnParallelLoRA(_WithAdapter, ColumnParallelLinear):
    """`ColumnParallelLinear` with frozen weight and bias, plus a trained adapter, (lora_alpha / lora_rank)
    B(A(dropout(x))): A [lora_rank, i] is whole on every rank, B [o, lora_rank] cut as the output features are.

    Args besides those of `ColumnParallelLinear`, whose `block` must have no adapter (else ValueError): lora_rank (8),
    lora_alpha (32), lora_dropout, a probability (0), lora_a_init and lora_b_init, the initial values of A ("normal")
    and B ("zeros").
    """


class RowParallelLoRA(_WithAdapter, RowParallelLinear):
    """`RowParallelLinear` with frozen weight and bias, plus a trained adapter, (lora_alpha / lora_rank)
    B(A(dropout(x))): A [lora_rank, i] is cut as the input features are, B [o, lora_rank] whole on every rank.

    Args besides those of `RowParallelLinear`, whose `block` must have no adapter (else ValueError): lora_rank (8),
    lora_alpha (32), lora_dropout, a probability (0), lora_a_init and lora_b_init, the initial values of A ("normal")
    and B ("zeros").
    """
