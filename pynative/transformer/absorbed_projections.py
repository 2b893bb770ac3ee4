"""Latent attention of one new token of each text in generation: its heads attend to the cached latents themselves, no
key and no value is made.

Keys x W_k^T and values x W_v^T are linear in the latent x. So a query q scores with a key as q W_k does with x, and a
sum of values is W_v times the sum of latents: both projections act on the one new token instead of all earlier ones
(DeepSeek-V2, 2024, section 2.1.2). b batch, n heads of this rank, S cached tokens; c width of the latent; of each head
p plain and r rotary channels of queries and keys, e of values.
"""

import numpy as np
from mindspore import Tensor

from parallel_core.numerics.dtypes import Array
from pynative import kernels


class AbsorbedProjections:
    """The up projection of keys and values, linear_kv_up_proj [n (p + e), c], applied to queries and to sums of
    latents. n heads of this rank, with p plain and r rotary channels of a key and e of a value; c width of the latent.

    Args:
        weight: the rows of this rank's heads, for each head p for the key and e for the value.
        heads, value_size: n, e.
        widths: (c, r).
    """

    def __init__(self, weight: Tensor, heads: int, value_size: int, widths: tuple[int, int]) -> None:
        self.heads, self.widths = heads, widths
        self.plain_size = weight.shape[0] // heads - value_size
        parts = kernels.split_rows(weight, [self.plain_size, value_size] * heads)
        self.of_keys, self.of_values = parts[::2], parts[1::2]

    def query(self, query: Tensor) -> Tensor:
        """Queries [1, b, n, p + r] of p plain and r rotary channels -> [1, b, n, c + r], whose product with a cached
        latent of width c and its rotary key is the score before it is scaled."""
        latent, rotary = self.widths
        plain, turned = kernels.split_features(query, (self.plain_size, rotary))
        batch = query.shape[1]
        rows = self._by_head(plain, batch, self.plain_size)
        projected = kernels.grouped_linear_input_gradient(rows, self.of_keys, [batch] * self.heads)
        return kernels.join_features(self._by_text(projected, batch, latent), turned)

    def values(self, attended: Tensor) -> Tensor:
        """Attention's weighted sums of cached latents and rotary keys, [1, b, n (c + r)] -> its sums of values, with e
        channels a head, [1, b, n e]."""
        batch = attended.shape[1]
        latents, _ = kernels.split_features(attended.reshape(1, batch, self.heads, -1), self.widths)
        rows = self._by_head(latents, batch, self.widths[0])
        projected = kernels.grouped_linear_forward(rows, self.of_values, [batch] * self.heads)
        return self._by_text(projected, batch, projected.shape[1]).reshape(1, batch, -1)

    def _by_head(self, x: Tensor, batch: int, width: int) -> Tensor:
        """[1, b, n, width] -> [n b, width]."""
        return kernels.gather_rows(x, _transposed(batch, self.heads), (width,))

    def _by_text(self, x: Tensor, batch: int, width: int) -> Tensor:
        """[n b, width] -> [1, b, n, width]."""
        return kernels.gather_rows(x, _transposed(self.heads, batch), (width,)).reshape(1, batch, self.heads, width)


def _transposed(rows: int, columns: int) -> Array:
    """The places in a flat matrix [rows, columns] of its transpose's entries: row-major indices, column by column,
    int32 [rows x columns]."""
    return np.arange(rows * columns, dtype=np.int32).reshape(rows, columns).T.reshape(-1)
