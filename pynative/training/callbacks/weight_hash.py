"""The callback that compares the weights of data-parallel replicas, which must be the same to the bit."""

import hashlib
from collections import defaultdict
from functools import partial

import numpy as np
from mindspore import Tensor

from pynative import parallel_state
from pynative.collectives import Group
from pynative.distributed.param_and_grad_buffer import ParamAndGradBuffers
from pynative.training.callbacks.base import RunCallback, TrainingState


class WeightHashCallback(RunCallback):
    """--check-weight-hash-across-dp-replicas-interval: compares, every `interval` iterations, a digest of each rank's
    trained weights of experts and one of its other trained weights with those of the ranks that hold the same. Raises
    RuntimeError on those ranks if they differ.
    """

    def __init__(self, interval: int) -> None:
        self.interval = interval

    def on_step_end(self, state: TrainingState) -> None:
        if state.iteration % self.interval:
            return
        buffers = state.step_cell.buffers
        buffers.finish_param_sync()
        digests = [(parallel_state.get_group(kind), digest) for kind, digest in _digests(buffers).items()]
        unlike = [", ".join(map(str, group.ranks)) for group, digest in digests if not _is_alike(digest, group)]
        if unlike:
            raise RuntimeError(
                f"iteration {state.iteration}: weights differ between the data-parallel replicas of ranks {unlike[0]}. "
                f"Start again from the last checkpoint and look for a faulty device"
            )


def _digests(buffers: ParamAndGradBuffers) -> dict[str, bytes]:
    """Kind of the group of replicas, such as that of experts -> the digest of all weights of this rank that are the
    same over it."""
    found: dict[str, hashlib.blake2b] = defaultdict(partial(hashlib.blake2b, digest_size=16))
    for entry, parameter in buffers.entries:
        parameter.meta.fetch()
        found[entry.spec.replicas].update(parameter.asnumpy().tobytes())
    return {kind: digest.digest() for kind, digest in found.items()}


def _is_alike(digest: bytes, group: Group) -> bool:
    """Whether all ranks of the group have this digest; all of them call this."""
    words = np.frombuffer(digest, np.uint16).astype(np.float32)  # 16 bits are exact in any reduction
    highest, lowest = (group.all_reduce(Tensor(words), op=op).asnumpy() for op in ("max", "min"))
    return np.array_equal(highest, lowest)
