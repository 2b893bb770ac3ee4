"""Clipping of attention's scores by scaling its weights (`--qk-clip`; `parallel_core.attention.qk_clip`)."""

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
    """The attentions in a stage's chunks (`model`), whose weights are scaled down after a step with scores above the
    threshold; none unless --qk-clip is given."""

    def __init__(self, model: Iterable[nn.Cell], config: QKClipConfig) -> None:
        cells = (cell for chunk in model for _, cell in chunk.cells_and_names()) if config.enabled else ()
        self._attentions = [cell for cell in cells if isinstance(cell, ParallelAttention | MLASelfAttention)]
        self._config = config

    def row_factors(self, figures: Mapping[str, Array]) -> list[tuple[Parameter, Array]]:
        """(Weight, factors [rows] of this rank's rows) for the weights to be scaled in each attention with a head whose
        largest score is above the threshold: linear_qkv's, or of latent attention those of the linears that give the
        heads their queries and their keys. Factors may be 1, as those of values. figures: a step's, with its largest
        scores; KeyError without them, if there are attentions."""
        found = []
        for cell in self._attentions:
            eta = qk_clip.shrinking(
                figures[LARGEST_SCORE][cell.core_attention.layer_number - 1], self._config.threshold
            )
            if eta.min() < 1:
                found += [(weight, _own_part(weight, rows)) for weight, rows in _rows(cell, eta, self._config.alpha)]
        return found


def _rows(cell: ParallelAttention | MLASelfAttention, eta: Array, alpha: float) -> Iterator[tuple[Parameter, Array]]:
    """Yield each weight of an attention that makes queries or keys with the factors [rows] of its rows of all ranks.
    eta [heads]: the factor by which a head's scores shrink; alpha: the exponent of the queries' share in it."""
    if isinstance(cell, ParallelAttention):
        yield cell.linear_qkv.weight, qk_clip.fused_rows(cell.rows, eta, alpha)
        return
    plain, rotary = cell.rotary_start, cell.latent_widths[1]
    yield cell.linear_q.weight, qk_clip.latent_query_rows(eta, alpha, plain, rotary)
    yield cell.linear_kv_up_proj.weight, qk_clip.latent_key_value_rows(eta, alpha, plain, cell.value_size)


def _own_part(weight: Parameter, rows: Array) -> Array:
    """The factors of this rank's rows of a weight, from those of all rows; rows of padding have factor 1."""
    group, count = parallel_state.get_tensor_model_parallel_group(), weight.shape[0]
    own = rows[group.rank * count : (group.rank + 1) * count]
    return np.concatenate([own, np.ones(count - len(own), own.dtype)])
