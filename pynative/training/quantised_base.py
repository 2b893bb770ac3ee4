"""Rounding of the weights of column- and row-parallel linears and of experts, with an adapter or not, to values of 4
bits, once before adapters are trained ("QLoRA", Dettmers et al., 2023); they keep their type."""

import mindspore as ms
from mindspore import nn

from parallel_core.numerics.block_formats import nf4
from pynative import kernels
from pynative.moe.experts import ExpertLinear
from pynative.parameter import write_parameter
from pynative.startup.log import log
from pynative.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear

_ROUNDED = (ColumnParallelLinear, RowParallelLinear, ExpertLinear)
"""The classes of linears whose weights are rounded. Linears that are whole on every rank, routers, embeddings and the
output layer stay, as in MindSpeed-LLM."""


def round_base(model: nn.Cell) -> None:
    """Round the weights of the column- and row-parallel linears and of the experts' to values of NF4, in place and in
    their own type, each rank its own part by itself; adapters stay as they are."""
    cells = (cell for _, cell in model.cells_and_names() if isinstance(cell, _ROUNDED))
    weights = [cell.weight for cell in cells if cell.weight is not None]
    for weight in weights:
        write_parameter(weight, nf4(kernels.cast(weight, ms.float32).asnumpy()))
    kept = sum(weight.nbytes for weight in weights)
    log(f"--qlora: {len(weights)} weights are rounded to NF4 and kept in their own type, {kept / 2**20:.1f} MiB a rank")
