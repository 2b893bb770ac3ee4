"""The most that a device computes in a second, of which the MFU (model FLOPs utilisation, Chowdhery et al., 2022,
appendix B) is a part."""

import time

import numpy as np

from parallel_core.config import AllConfig
from pynative import parallel_state
from pynative.startup.log import log
from pynative.training.callbacks.memory import is_on_cpu

_SIZE, _TRIES = 768, 3


def peak_tflops(config: AllConfig) -> float | None:
    """As --peak-tflops says; of a CPU what a product of float32 matrices by numpy reaches now, beside the other ranks;
    none where nothing is known."""
    given = config.training_config.log.peak_tflops
    found = given or (_measured() if is_on_cpu() else None)
    if found and parallel_state.get_global_rank() == 0:
        log(f"MFU is a part of {found:.4g} TFLOP/s, {'as --peak-tflops says' if given else 'measured'}")
    return found


def _measured() -> float:
    a = np.ones((_SIZE, _SIZE), np.float32)
    seconds = []
    for _ in range(_TRIES):
        start = time.perf_counter()
        a @ a
        seconds.append(time.perf_counter() - start)
    return 2e-12 * _SIZE**3 / min(seconds)
