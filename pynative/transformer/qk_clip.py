"""Clipping of attention's scores by its weights (`--qk-clip`; `parallel_core.attention.qk_clip`)."""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from mindspore import Parameter, nn

from parallel_core.attention import qk_clip
from parallel_core.config.qk_clip import QKClipConfig
from parallel_core.numerics.dtypes import Array
from parallel_core.step_figures import LARGEST_SCORE
from pynative import parallel_state
from pynative.transformer.attention import ParallelAttention
from pynative.transformer.multi_latent_attention import MLASelfAttention


class QueryKeyClip:
    """The attention of a stage's chunks, whose rows are scaled down."""

    def __init__(self, model: Iterable[nn.Cell], config: QKClipConfig) -> None:
        cells = (cell for chunk in model for _, cell in chunk.cells_and_names()) if config.enabled else ()
        self._attentions = [cell for cell in cells if isinstance(cell, ParallelAttention | MLASelfAttention)]
        self._config = config

    def row_factors(self, figures: Mapping[str, Array]) -> list[tuple[Parameter, Array]]:
        """Factors [rows] of those weights that shrink, by what a step reported of its scores."""
        found = []
        for cell in self._attentions:
            eta = qk_clip.shrinking(
                figures[LARGEST_SCORE][cell.core_attention.layer_number - 1], self._config.threshold
            )
            if eta.min() < 1:
                found += [(weight, _own_part(weight, rows)) for weight, rows in _rows(cell, eta, self._config.alpha)]
        return found


def _rows(cell: ParallelAttention | MLASelfAttention, eta: Array, alpha: float) -> Iterator[tuple[Parameter, Array]]:
    """Weights and the factors of all ranks' rows."""
    if isinstance(cell, ParallelAttention):
        yield cell.linear_qkv.weight, qk_clip.fused_rows(cell.rows, eta, alpha)
        return
    plain, rotary = cell.rotary_start, cell.latent_widths[1]
    yield cell.linear_q.weight, qk_clip.latent_query_rows(eta, alpha, plain, rotary)
    yield cell.linear_kv_up_proj.weight, qk_clip.latent_key_value_rows(eta, alpha, plain, cell.value_size)


def _own_part(weight: Parameter, rows: Array) -> Array:
    """The factors of this rank's rows of a weight; those of padding stay."""
    group, count = parallel_state.get_tensor_model_parallel_group(), weight.shape[0]
    own = rows[group.rank * count : (group.rank + 1) * count]
    return np.concatenate([own, np.ones(count - len(own), own.dtype)])
