"""A check that a written checkpoint computes the logits of the one that was read.

Where weights are equal bit by bit and settings say the same network, this can still find a setting which changes the
network and that nobody compared, a target that the engine cannot load, and NaN or infinities. It does not find a
mistake that reading makes of both alike: for that the logits of another tool are needed.

The engine is another package with a device of its own, so it runs in a process of its own, started by its name.
"""

import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from math import prod
from pathlib import Path

import numpy as np

from parallel_core.checkpoint.convert.model import VOCABULARY, Model
from parallel_core.numerics.dtypes import Array

ENGINE = "pynative.generation.checkpoint_logits"
MOST_BYTES = 2 << 30
"""Limit for the bytes of the weights in float32: a larger model is compared only if it is asked for (--logits yes)."""
TOLERANCE = 1e-4
"""Largest allowed difference of two logits, as a part of the largest logit: a vocabulary that is padded otherwise is
multiplied in other blocks."""
ROUNDED = 0.1
"""The tolerance where adapters were merged into weights of 16 bits: the sums were rounded, which the source's are
not."""
_PROMPT = 16
SECONDS, SECONDS_OF_GIB = 300, 120
"""Seconds that the engine may take to start, and for each GiB of the weights in float32."""


class Unfinished(ValueError):
    """The error that the engine did not give logits in time."""


def _gib(model: Model) -> float:
    return 4 * sum(prod(tensor.shape) for tensor in model.weights.values()) / 2**30


def skipped(model: Model) -> str | None:
    """A clause that says why logits are not compared unless --logits yes asks for it: the weights have more than 2 GiB
    in float32, or the engine or MindSpore is not installed. None if none of this is so."""
    size = _gib(model)
    if size > MOST_BYTES / 2**30:
        more = f"{size:.1f} GiB in float32, more than {MOST_BYTES >> 30}"
        return f"the weights take {more}; --logits yes compares them"
    if find_spec(ENGINE.partition(".")[0]) is None or find_spec("mindspore") is None:
        return "the engine is not installed here"
    return None


def difference(model: Model, source: Path, target: Path) -> float:
    """The largest difference between two checkpoints' logits of a small prompt, divided by the largest magnitude of the
    source's logits, or by 1 where that is smaller. model: the one read from `source`.

    Raises ValueError if either cannot be computed, or if the result is NaN or above TOLERANCE (ROUNDED where adapters
    were merged into weights of 16 bits); Unfinished if the engine takes too long.
    """
    ids = model.unpadded_vocab_size
    prompt = (np.arange(1, 1 + min(_PROMPT, _longest(model)), dtype=np.int64) * 7919 % ids).tolist()
    seconds = SECONDS + SECONDS_OF_GIB * _gib(model)
    one, other = (logits[..., :ids] for logits in _computed(prompt, seconds, source, target))
    found = float(np.abs(one - other).max() / max(1.0, np.abs(one).max()))
    dtype = model.weights[VOCABULARY[0]].dtype
    if not found <= (ROUNDED if model.adapters and dtype != "float32" else TOLERANCE):  # `not <=` refuses NaN, too
        raise ValueError(f"logits of a small prompt differ from those of {source} by {found:.1e} of the largest")
    return found


def _longest(model: Model) -> int:
    longest: int = model.network.get("max_position_embeddings") or _PROMPT
    return longest


def _computed(prompt: list[int], seconds: float, *folders: Path) -> list[Array]:
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "logits.npz"
        command = [sys.executable, "-m", ENGINE, "--out", str(out), "--ids", ",".join(map(str, prompt))]
        environment = {"GLOG_v": "3", **os.environ}
        try:
            done = subprocess.run(
                [*command, *map(str, folders)], capture_output=True, text=True, env=environment, timeout=seconds
            )
        except subprocess.TimeoutExpired as error:
            raise Unfinished(f"the engine was not done after {seconds:.0f} s") from error
        if done.returncode:
            raise ValueError(f"the engine did not compute logits of it:\n{done.stderr.strip()[-2000:]}")
        with np.load(out) as arrays:
            return [arrays[name] for name in arrays.files]
