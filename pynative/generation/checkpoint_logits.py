"""`python -m pynative.generation.checkpoint_logits --out FILE.npz --ids N,N,... DIR [DIR ...]`: a prompt's logits by
each checkpoint's weights.

Checkpoints that `open_checkpoint` reads, computed in float32 on this process alone. `parallel_core.checkpoint.convert`,
which has no device, starts this to compare what it read with what it wrote.
"""

import sys
from argparse import ArgumentTypeError
from pathlib import Path

import numpy as np
from mindspore import Tensor

from parallel_core.checkpoint.convert.reader import open_checkpoint
from parallel_core.config import AllConfig, ParallelConfig
from parallel_core.config.serialise import config_for_inference
from parallel_core.findings import exit_code
from parallel_core.numerics.dtypes import Array
from parallel_core.system.command_line import command_line
from pynative.checkpointing import load_model
from pynative.key_value_cache import generating
from pynative.tape.autograd import no_grad
from pynative.training.utils import set_parallel_context
from pynative.transformer.gpt_model import GPTModel


def config_in_float32(directory: Path) -> AllConfig:
    """The configuration of a checkpoint's model, with float32 as the type in which it computes. Raises ValueError if
    there is no checkpoint or its content is wrong, OSError for a file that cannot be read."""
    return config_for_inference(open_checkpoint(directory, optimizer=False).manifest.config, dtype="float32")


def logits_of(directory: Path, ids: Array) -> Array:
    """The float32 logits [b, s, v] of a checkpoint's model for `ids` [b, s]; v includes the vocabulary's padding.
    `set_parallel_context` must have been called. Raises ValueError if the checkpoint is missing or damaged, OSError for
    a file that cannot be read."""
    model = GPTModel(config_in_float32(directory).model_config, parallel_output=False)
    load_model(directory, model)
    model.set_train(False)
    positions = np.broadcast_to(np.arange(ids.shape[1], dtype=np.int32), ids.shape)
    with no_grad(), generating(None):
        return model(Tensor(ids), Tensor(positions), None).asnumpy()


def _ids(text: str) -> Array:
    """Token ids [1, s], from their text. Raises argparse.ArgumentTypeError for other text."""
    words = text.split(",")
    if not all(word.isdecimal() and int(word) < 2**31 for word in words):
        raise ArgumentTypeError(f"must be token ids with commas between, not {text!r}")
    return np.array([list(map(int, words))], np.int32)


def main(argv: list[str] | None = None) -> int:
    """Write each folder's logits to the .npz file, as arr_0, arr_1, ... in the command line's order. Returns the exit
    code: 0, or 1 after a ValueError or OSError, which is printed; the parser exits with 2."""
    parser = command_line(__doc__, "python -m pynative.generation.checkpoint_logits")
    parser.add_argument("directories", nargs="+", type=Path, help="checkpoints")
    parser.add_argument("--out", type=Path, required=True, help="the .npz file that is written")
    parser.add_argument("--ids", type=_ids, required=True, help="the prompt's, with commas between")
    options = parser.parse_args(argv)

    def work() -> None:
        set_parallel_context(ParallelConfig())
        np.savez(options.out, *(logits_of(directory, options.ids) for directory in options.directories))

    return exit_code(work)


if __name__ == "__main__":
    sys.exit(main())
