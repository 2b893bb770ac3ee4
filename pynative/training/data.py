"""From datasets, MindSpore's or anybody's, to the iterator that a step draws from."""

from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import Any

from parallel_core.config import AllConfig
from parallel_core.data.loader import StepLoader, build_step_loader
from pynative import parallel_state


def get_train_valid_test_num_samples(config: AllConfig | None = None) -> tuple[int, int, int]:
    """How many samples a run draws from each split; by default the run that `set_parallel_context` initialised."""
    config = config or parallel_state.get_config()
    training, batch = config.training_config, config.dataset_config.global_batch_size
    in_training = training.train_samples if config.batch_sizes.changes else training.training_iters * batch
    if training.skip_train:
        return 0, training.eval_iters * batch, 0
    evaluations = training.training_iters // training.eval_interval + 1 if training.eval_interval else 0
    return in_training or 0, evaluations * training.eval_iters * batch, training.eval_iters * batch


def micro_batch_of_all(config: AllConfig) -> int:
    """Samples of one micro-batch on every data-parallel rank."""
    return config.dataset_config.batch_size * config.parallel_config.data_parallel_size


def build_pretraining_data_loader(
    dataset: Any, consumed_samples: int, config: AllConfig | None = None, draws: int = 1, is_training: bool = True
) -> StepLoader:
    """This replica's steps of `dataset`, each in `draws` items, from the first sample that was not consumed yet.

    An item is a dict of arrays whose rows are a step's micro-batches, one after the other. By default the configuration
    is the one that `set_parallel_context` was given. Megatron's forward_step_func draws micro-batches: draws is their
    number. Steps of the training grow as --rampup-batch-size says; those of an evaluation do not.
    """
    config = config or parallel_state.get_config()
    data, unit = config.dataset_config, micro_batch_of_all(config)
    sizes = config.batch_sizes

    def grows(given: int) -> int:
        return sizes.at(consumed_samples + given * unit) // unit

    return build_step_loader(
        dataset,
        consumed_samples,
        micro_batch_size=data.batch_size,
        micro_batch_num=grows if is_training and draws == 1 else data.micro_batch_num // draws,
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


@dataclass
class RunData:
    """What a run draws from."""

    train: Iterator
    valid: Iterator | None
    samples_per_epoch: int | None
    """Where it is known."""


@dataclass
class DataSources:
    """What a script gave: datasets by a provider, or loaders of its own, which go before."""

    provider: Callable | None
    train_data_loader: Iterable | None
    valid_data_loader: Iterable | None

    def open(self, config: AllConfig, draws: int, iteration: int, consumed_samples: int) -> RunData:
        """Iterators that go on after `iteration` steps, which took `consumed_samples`."""
        if self.provider is None and self.train_data_loader is None:
            raise ValueError("pretrain: pass train_valid_test_datasets_provider or train_data_loader")
        if config.training_config.checkpoint.new_dataset:
            iteration = consumed_samples = 0
        train_set, valid_set = self._datasets(config)
        valid = self.valid_data_loader
        if valid is None and valid_set is not None:
            valid = build_pretraining_data_loader(valid_set, 0, config, draws, is_training=False)
        if self.train_data_loader is not None:
            if config.batch_sizes.changes:
                raise ValueError(
                    "train_data_loader: gives whole steps, whose size --rampup-batch-size changes; give a dataset"
                )
            train = endless(self.train_data_loader, iteration * draws)
        elif config.training_config.skip_train:
            train = iter(())
        else:
            train = endless(build_pretraining_data_loader(train_set, consumed_samples, config, draws))
        return RunData(train, None if valid is None else endless(valid), self._epoch(config, train_set, draws))

    def _datasets(self, config: AllConfig) -> tuple[Any, Any]:
        """The provider's for training and validation, unless both come from loaders."""
        if self.provider is None or (self.train_data_loader is not None and self.valid_data_loader is not None):
            return None, None
        train, valid, _ = self.provider(get_train_valid_test_num_samples(config))
        if train is None and self.train_data_loader is None and not config.training_config.skip_train:
            raise ValueError(
                "train_valid_test_datasets_provider: gave no training dataset; check --data-path and --split"
            )
        return train, valid

    def _epoch(self, config: AllConfig, train_set: Any, draws: int) -> int | None:
        """Samples of an epoch: as the dataset says, or as many as a loader has items for."""
        if self.train_data_loader is None:
            return getattr(train_set, "samples_per_epoch", None)
        items = len(self.train_data_loader) if isinstance(self.train_data_loader, Sized) else 0
        return items * config.dataset_config.global_batch_size // draws or None
