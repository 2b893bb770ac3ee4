"""Neither the number of live tensors nor the resident memory grows from step to step."""

import gc
import resource

import numpy as np

from tests.support.distributed import run
from tests.support.pretraining import pretrain_tiny

STEPS, SAMPLES = 800, 8
MODEL = (
    "--num-layers 1 --hidden-size 16 --num-attention-heads 2 --seq-length 16 --max-position-embeddings 16 "
    "--micro-batch-size 1 --lr 1e-3 --vocab-size 60 --padded-vocab-size 64 --tokenizer-type NullTokenizer "
    "--hidden-dropout 0 --attention-dropout 0 "
    "--eval-iters 0 --log-interval 1000000"
)


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def grown(backend, steps: int, flags: str) -> tuple[list[int], list[int]]:
    """(live tensors, resident bytes), each read SAMPLES times over a run of so many steps."""
    from mindspore import Tensor

    from pynative.training.callbacks import Callback

    tensors, resident = [], []

    class Census(Callback):
        def on_step_end(self, state):
            if state.iteration % (steps // SAMPLES) == 0:
                gc.collect()
                tensors.append(sum(issubclass(type(entry), Tensor) for entry in gc.get_objects()))
                resident.append(_resident_bytes())

    pretrain_tiny(backend, f"{MODEL} --train-iters {steps} {flags}", callbacks=[Census()])
    return tensors, resident


def test_nothing_grows():
    """800 steps: the count of live tensors is constant, and the resident set grows by less than 1 KiB a step.

    The first quarter is for warming up: pools and tables fill. A leak of 80 bytes in each function on the tape was 1.6
    KiB a step of this model.
    """
    ((tensors, resident),) = run(1, grown, STEPS, "--global-batch-size 1")
    assert len(set(tensors)) == 1, tensors
    later = np.array(resident[len(resident) // 4 :])
    slope = np.polyfit(np.arange(len(later)) * STEPS / len(resident), later, 1)[0]
    assert slope < 1024, (slope, resident)


def test_no_tensor_stays_behind_a_sharded_step():
    """Live tensors stay constant with distributed optimizer, overlap and recompute on two ranks, over fewer steps."""
    flags = "--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather --recompute True"
    for tensors, _ in run(2, grown, 80, f"--global-batch-size 2 {flags}"):
        assert len(set(tensors[1:])) == 1, tensors
