"""Compare the weights of data-parallel replicas, which must be the same to the bit."""

import hashlib

import numpy as np
from mindspore import Tensor

from pynative import parallel_state
from pynative.training.callbacks.base import Callback, TrainingState


class WeightHashCallback(Callback):
    """--check-weight-hash-across-dp-replicas-interval: a digest of each rank's weights every so many iterations."""

    reads_parameters = False

    def __init__(self, interval: int) -> None:
        self.interval = interval

    def on_step_end(self, state: TrainingState) -> None:
        if state.iteration % self.interval:
            return
        state.step_cell.buffers.finish_param_sync()
        digest = hashlib.blake2b(digest_size=16)
        for _, parameter in state.step_cell.buffers.entries:
            parameter.meta.fetch()
            digest.update(parameter.asnumpy().tobytes())
        words = np.frombuffer(digest.digest(), np.uint16).astype(np.float32)  # 16 bits are exact in any reduction
        group = parallel_state.get_data_parallel_group(with_context_parallel=True)
        highest, lowest = (group.all_reduce(Tensor(words), op=op).asnumpy() for op in ("max", "min"))
        if not np.array_equal(highest, lowest):
            raise RuntimeError(
                f"iteration {state.iteration}: weights differ between the data-parallel replicas of ranks "
                f"{', '.join(map(str, group.ranks))}. Start again from the last checkpoint and look for a faulty device"
            )
