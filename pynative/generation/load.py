"""A model to generate with, from any checkpoint that --load takes, on as many ranks as were started."""

from pathlib import Path
from typing import Any

from mindspore import nn

from parallel_core.checkpoint.convert.reader import open_checkpoint
from parallel_core.checkpoint.reader import Vocabulary
from parallel_core.config import AllConfig
from parallel_core.config.serialise import config_for_inference
from pynative import parallel_state
from pynative.checkpointing import load_model
from pynative.training.utils import set_parallel_context
from pynative.transformer.gpt_model import GPTModel


def config_of(
    folder: Path, dtype: str | None = None, tokenizer: dict[str, Any] | None = None, **parallel: int | str | None
) -> AllConfig:
    """The model and tokenizer of a checkpoint of any tool.

    dtype: of parameters and of what is computed, instead of the checkpoint's. tokenizer: options of the data section
    that are used instead of the checkpoint's. parallel: options of ParallelConfig.
    """
    sections = open_checkpoint(folder, optimizer=False).manifest.config
    data, given = sections.get("dataset_config", {}), tokenizer or {}
    settings = {**data.get("tokenizer", {}), **given.get("tokenizer", {})}
    sections["dataset_config"] = {**data, **given, "tokenizer": settings}
    return config_for_inference(sections, dtype=dtype, **parallel)


def filled(folder: Path, config: AllConfig) -> nn.Cell:
    """This rank's stage of the model, with the checkpoint's weights."""
    stage, last = parallel_state.get_pipeline_model_parallel_rank(), config.parallel_config.pipeline_model_parallel_size
    model = GPTModel(config.model_config, pre_process=stage == 0, post_process=stage == last - 1)
    sizes = config.model_config
    load_model(folder, model, Vocabulary(sizes.unpadded_vocab_size, sizes.vocab_size))
    return model


def loaded(folder: Path, config: AllConfig) -> nn.Cell:
    """Prepare this process as a rank of the configuration's, and give it its part of the model."""
    set_parallel_context(config.parallel_config)
    return filled(folder, config)
