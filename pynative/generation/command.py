"""A checkpoint's model on this process, for the commands that run one."""

from pathlib import Path

from mindspore import nn

from parallel_core.checkpoint.reader import Vocabulary
from parallel_core.config import AllConfig
from pynative import parallel_state
from pynative.checkpointing import load_model
from pynative.training.utils import set_parallel_context
from pynative.transformer.gpt_model import GPTModel


def filled(folder: Path, config: AllConfig) -> nn.Cell:
    """This rank's stage of the GPT that `config` describes, with the weights of the checkpoint `folder`. The
    process groups must exist; all ranks call this. Raises ValueError if the checkpoint is missing, damaged, or does not
    fit, OSError for a file that cannot be opened."""
    stage, last = parallel_state.get_pipeline_model_parallel_rank(), config.parallel_config.pipeline_model_parallel_size
    model = GPTModel(config.model_config, pre_process=stage == 0, post_process=stage == last - 1)
    sizes = config.model_config
    load_model(folder, model, Vocabulary(sizes.unpadded_vocab_size, sizes.vocab_size))
    return model


def loaded(folder: Path, config: AllConfig) -> nn.Cell:
    """Prepare this process as a rank (`set_parallel_context`), and return its stage of the model with the checkpoint's
    weights. Raises as `filled` and `set_parallel_context` do."""
    set_parallel_context(config.parallel_config)
    return filled(folder, config)
