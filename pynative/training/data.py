"""From datasets, MindSpore's or anybody's, to the iterator that a step draws from."""

from collections.abc import Iterable, Iterator
from typing import Any

from parallel_core.config import AllConfig
from parallel_core.data.loader import StepLoader, build_step_loader
from pynative import parallel_state


def get_train_valid_test_num_samples(config: AllConfig) -> tuple[int, int, int]:
    """How many samples a run draws from each split."""
    training, batch = config.training_config, config.dataset_config.global_batch_size
    if training.skip_train:
        return 0, training.eval_iters * batch, 0
    evaluations = training.training_iters // training.eval_interval + 1 if training.eval_interval else 0
    return training.training_iters * batch, evaluations * training.eval_iters * batch, training.eval_iters * batch


def build_pretraining_data_loader(dataset: Any, consumed_samples: int, config: AllConfig, draws: int = 1) -> StepLoader:
    """This replica's steps of `dataset`, each in `draws` items, from the first sample that was not consumed yet."""
    data = config.dataset_config
    return build_step_loader(
        dataset,
        consumed_samples,
        micro_batch_size=data.batch_size,
        micro_batch_num=data.micro_batch_num // draws,
        data_parallel_rank=parallel_state.get_data_parallel_rank(),
        data_parallel_size=parallel_state.get_data_parallel_world_size(),
        dataloader_type=data.dataloader_type or "single",
        data_sharding=data.data_sharding,
        vocab_size=config.model_config.vocab_size,
        prefetch=data.num_workers > 0,
    )


def _rounds(loader: Iterable) -> Iterator:
    """The loader over and over; a MindSpore dataset as dicts of tensors."""
    while True:
        count = 0
        for item in loader.create_dict_iterator() if hasattr(loader, "create_dict_iterator") else loader:
            count += 1
            yield item
        if not count or iter(loader) is loader:
            raise ValueError(
                "the training data ended before --train-iters was reached: pass a loader that can be iterated again "
                "(not a one-time iterator), give it more data, or lower --train-iters"
            )


def endless(loader: Iterable, skip: int = 0) -> Iterator:
    """An iterator that starts a loader again at its end, after dropping the first `skip` items."""
    rounds = _rounds(loader)
    for _ in range(skip):
        next(rounds)
    return rounds
