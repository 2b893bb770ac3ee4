"""Separation of documents in one sequence: positions and masks made from the end-of-document token."""

import numpy as np
from mindspore import Tensor, nn

from parallel_core.batch.documents import dense_mask, starts_after
from parallel_core.batch.micro_batches import DOCUMENT_STARTS
from parallel_core.numerics.dtypes import Array
from pynative.context_parallel.batch import context_shard, whole_sequence


class EosMask(nn.Cell):
    """Positions that may restart after each end-of-document token, and a causal mask within documents.

    Args:
        batch_size, seq_len: b and s that every batch must have, s of whole sequences.
        eod_token_id: the token that ends a document, and belongs to it.
        reset_position_ids: count positions from 0 in every document.
    """

    def __init__(self, batch_size: int, seq_len: int, eod_token_id: int, reset_position_ids: bool = False) -> None:
        super().__init__()
        self.batch_size, self.seq_len, self.eod_token_id = batch_size, seq_len, eod_token_id
        self.reset_position_ids = reset_position_ids

    def construct(self, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        """input_ids [b, s] -> (position_ids [b, s] int32, mask [b, 1, s, s] bool, True where a score is left out).

        With context parallelism input_ids are shards of sequences; so are the positions, and the mask has the rows that
        this rank's attention needs. The group's ranks must call this together. Raises ValueError for another b or s.
        """
        positions, starts = self._whole(input_ids)
        return self._own(positions), _tensor(context_shard().queries(dense_mask(starts)))

    def documents(self, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        """(position_ids, document_starts int32 [b, s]): as `construct`, with the first position of each query's
        document in place of the mask."""
        positions, starts = self._whole(input_ids)
        return self._own(positions), _tensor(context_shard().queries(starts, DOCUMENT_STARTS))

    def _whole(self, input_ids: Tensor) -> tuple[Array, Array]:
        """(Positions, document starts) of the whole sequences, int32 [b, s] each."""
        ids = whole_sequence(input_ids)
        if ids.shape != (self.batch_size, self.seq_len):
            raise ValueError(f"EosMask: built for batches of {(self.batch_size, self.seq_len)}, got {ids.shape}")
        starts = starts_after(ids == self.eod_token_id)
        positions = np.broadcast_to(np.arange(self.seq_len, dtype=np.int32), ids.shape)
        return positions - starts if self.reset_position_ids else positions, starts

    @staticmethod
    def _own(positions: Array) -> Tensor:
        return _tensor(context_shard().sequence(positions))


def _tensor(array: Array) -> Tensor:
    return Tensor.from_numpy(np.ascontiguousarray(array))
