"""Documents in one sequence kept apart: positions and masks from the end-of-document token."""

import numpy as np
from mindspore import Tensor, nn

from pynative.context_parallel.batch import context_shard, whole_sequence


class EosMask(nn.Cell):
    """Positions that may restart after each end-of-document token, and a causal mask within documents.

    Args:
        batch_size, seq_len: b and s of the batches to come, s of whole sequences.
        eod_token_id: the token that ends a document; it belongs to the document it ends.
        reset_position_ids: count positions from 0 in every document.
    """

    def __init__(self, batch_size: int, seq_len: int, eod_token_id: int, reset_position_ids: bool = False) -> None:
        super().__init__()
        self.batch_size, self.seq_len, self.eod_token_id = batch_size, seq_len, eod_token_id
        self.reset_position_ids = reset_position_ids

    def construct(self, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        """[b, s] -> position_ids [b, s] int32, mask [b, 1, s, s] bool, True where a score is left out.

        With context parallelism input_ids are shards of sequences; so are the positions, and the mask has the rows
        that this rank's attention needs. The group's ranks must call this together.
        """
        ids = whole_sequence(input_ids)
        if ids.shape != (self.batch_size, self.seq_len):
            raise ValueError(f"EosMask: built for batches of {(self.batch_size, self.seq_len)}, got {ids.shape}")
        ends = ids == self.eod_token_id
        document = np.cumsum(ends, axis=1) - ends
        positions = np.broadcast_to(np.arange(self.seq_len, dtype=np.int32), ids.shape)
        later = np.triu(np.ones((self.seq_len, self.seq_len), bool), 1)
        mask = later | (document[:, :, None] != document[:, None, :])
        if self.reset_position_ids:
            starts = np.concatenate([np.ones_like(ends[:, :1]), ends[:, :-1]], axis=1)
            positions = positions - np.maximum.accumulate(np.where(starts, positions, 0), axis=1)
        shard = context_shard()
        own = np.ascontiguousarray(shard.sequence(positions), np.int32)
        return Tensor.from_numpy(own), Tensor.from_numpy(np.ascontiguousarray(shard.mask_rows(mask[:, None])))
