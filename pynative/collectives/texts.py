"""Gathering of a text of each rank."""

import numpy as np
from mindspore import Tensor

from pynative.collectives.interface import Group


def gathered_texts(text: str, group: Group) -> list[str]:
    """Each rank's text, on every rank, in the group's order; all ranks of the group call this."""
    raw = text.encode()
    sizes = group.all_gather(Tensor(np.array([len(raw)], np.int64))).asnumpy()
    words = np.frombuffer(raw.ljust(-(-max(int(sizes.max()), 1) // 4) * 4), np.int32)
    rows = np.asarray(group.all_gather(Tensor(words[None])).asnumpy())
    return [row.tobytes()[: int(size)].decode() for row, size in zip(rows, sizes, strict=True)]
