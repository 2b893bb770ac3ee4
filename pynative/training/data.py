"""Data of a run: datasets or loaders, MindSpore's or any other, made into the iterator that a step draws from."""

from collections.abc import Callable, Iterable, Iterator, Sized
from dataclasses import dataclass
from typing import Any

import numpy as np
from mindspore import Tensor

from parallel_core.config import AllConfig, ConfigError, Finding
from parallel_core.data.loader import FirstSamples, StepLoader, build_step_loader
from pynative import parallel_state
from pynative.pipeline_parallel.stage import ForwardStep
from pynative.startup.log import log
from pynative.tensor_parallel.data import broadcast_item


def get_train_valid_test_num_samples(config: AllConfig | None = None) -> tuple[int, int, int]:
    """(Training samples, validation samples, test samples) that a script's provider is asked for, those of the whole
    run, which draws none of the test data; with --skip-train no training samples. config: by default the one that
    `set_parallel_context` was given."""
    config = config or parallel_state.get_config()
    training, data = config.training_config, config.dataset_config
    batch, evaluated = data.global_batch_size, data.eval_global_batch_size or data.global_batch_size
    in_training = training.train_samples if config.batch_sizes.changes else training.training_iters * batch
    if training.skip_train:
        return 0, training.eval_iters * evaluated, 0
    evaluations = training.training_iters // training.eval_interval + 1 if training.eval_interval else 0
    return in_training or 0, evaluations * training.eval_iters * evaluated, training.eval_iters * evaluated


def micro_batch_of_all(config: AllConfig) -> int:
    """The number of samples in one micro-batch of all data-parallel ranks together."""
    return config.dataset_config.batch_size * config.parallel_config.data_parallel_size


def build_pretraining_data_loader(
    dataset: Any, consumed_samples: int, config: AllConfig | None = None, draws: int = 1, is_training: bool = True
) -> StepLoader:
    """A loader of this replica's steps of `dataset`, each in `draws` items, from the first sample that was not consumed
    yet.

    An item is a dict of arrays whose rows are its micro-batches, one after the other. config: by default the one that
    `set_parallel_context` was given. draws: the number of items that make a step: 1, or for Megatron's
    forward_step_func, which draws single micro-batches, the number of these. With 1, training steps have the sizes of
    `AllConfig.batch_sizes`, and those of an evaluation (is_training False) that of its global batches. Raises
    ValueError as `build_step_loader`.
    """
    config = config or parallel_state.get_config()
    data, unit = config.dataset_config, micro_batch_of_all(config)
    sizes, micro_batches = config.batch_sizes, data.micro_batch_num // draws
    if not is_training and draws == 1:
        micro_batches = config.evaluated_micro_batches

    def grows(given: int) -> int:
        return sizes.at(consumed_samples + given * unit) // unit

    grow = is_training and draws == 1
    return build_step_loader(
        dataset,
        _place(dataset, consumed_samples, config, 0 if grow and sizes.changes else micro_batches * unit),
        micro_batch_size=data.batch_size,
        micro_batch_num=grows if grow else micro_batches,
        data_parallel_rank=parallel_state.get_data_parallel_rank(),
        data_parallel_size=parallel_state.get_data_parallel_world_size(),
        dataloader_type=data.dataloader_type or "single",
        data_sharding=data.data_sharding,
        drop_last=data.drop_remainder,
        prefetch=data.num_workers > 0,
    )


def _place(dataset: Sized, consumed: int, config: AllConfig, item: int) -> int:
    """The number of samples, after `consumed` ones, that the current pass over a dataset has taken: in whole items of
    `item` samples, or, for 0, in steps whose sizes change; all `consumed` where no second pass follows."""
    data, samples = config.dataset_config, len(dataset)
    if data.dataloader_type == "cyclic":
        return consumed
    if not item:
        return config.batch_sizes.place(consumed, samples, data.drop_remainder)
    whole = (samples if data.drop_remainder else samples + item - 1) // item * item
    return consumed % whole if whole else consumed


_LASTS = {"training": "--train-iters", "validation": "--eval-iters"}
"""What data are for -> the flag that says how many of them are drawn."""


def _rounds(loader: Iterable[Any], purpose: str) -> Iterator[Any]:
    """Yield a loader's items, over and over; those of a MindSpore dataset as dicts of tensors. Raises ValueError after
    a pass without items, or over a loader that is its own iterator."""
    while True:
        count = 0
        for item in loader.create_dict_iterator() if hasattr(loader, "create_dict_iterator") else loader:
            count += 1
            yield item
        if not count or iter(loader) is loader:
            raise ValueError(
                f"the {purpose} data ended before {_LASTS[purpose]} was reached: pass a loader that can be iterated "
                f"again (not a one-time iterator), give it more data, or lower {_LASTS[purpose]}"
            )


def endless(loader: Iterable[Any], skip: int = 0, purpose: str = "training") -> Iterator[Any]:
    """An iterator over a loader's items (a MindSpore dataset's as dicts of tensors) that starts anew at their end; the
    first `skip` items are dropped here. purpose: "training" or "validation", for the error. At the end of a pass
    ValueError is raised if it had no item, or if the loader is its own iterator, which ends for good."""
    rounds = _rounds(loader, purpose)
    for _ in range(skip):
        next(rounds)
    return rounds


def _opened(loader: Iterable[Any] | None, skip: int, is_sent: bool, purpose: str) -> Iterator[Any] | None:
    """An endless iterator over a loader's items, after the first `skip`; None without a loader. is_sent: the
    tensor-parallel group's first rank draws, and sends the items to the others."""
    items = None if loader is None else endless(loader, skip, purpose)
    return _sent_by_the_first(items) if is_sent else items


def _sent_by_the_first(items: Iterator[Any] | None) -> Iterator[Any]:
    """Yield the items that the first rank of the tensor-parallel group draws, on each of its ranks; items: None on the
    others."""
    while True:
        yield broadcast_item(None if items is None else next(items))


@dataclass
class RunData:
    """A run's iterators over training and validation data on this rank; None where this rank neither draws items nor is
    sent any. is_evaluated: whether any rank has validation data; samples_per_epoch: None if unknown."""

    train: Iterator[Any] | None
    valid: Iterator[Any] | None
    is_evaluated: bool
    """Whether any rank has validation data."""
    samples_per_epoch: int | None
    """Samples per epoch; None if unknown."""


@dataclass
class DataSources:
    """A script's data: a provider of datasets, or loaders of its own, which take precedence.

    As in Megatron's scripts it is enough if the first rank of each tensor-parallel group has data, and a middle stage
    of a pipeline may have none. Data that only the first rank has are sent to the others of its group here, unless a
    function of the script draws them: that must send them itself.
    """

    provider: Callable[..., Any] | None
    train_data_loader: Iterable[Any] | None
    valid_data_loader: Iterable[Any] | None

    @property
    def loader_name(self) -> str:
        """A description of the script's own training loader on this rank; "" if it has none."""
        return "" if self.train_data_loader is None else f"train_data_loader ({type(self.train_data_loader).__name__})"

    def count_epochs(self, config: AllConfig, draws: int) -> None:
        """Set the number of training iterations from --num_train_epochs and the loader's length; do nothing without
        that flag, or if the number is known already. draws: the number of items of the loader that make one step. All
        ranks call this, also those without a loader.

        Raises `ConfigError` if no rank's loader has a length above 0, if the epochs are less than one iteration, or if
        other options do not fit the number.
        """
        flag, epochs = "--num_train_epochs", config.training_config.epochs
        if epochs is None or config.training_config.training_iters:
            return
        loader = _in_draws(self.train_data_loader, draws)
        own = Tensor(np.array([len(loader) if isinstance(loader, Sized) else 0], np.int64))
        items = int(parallel_state.get_world_group().all_gather(own).asnumpy().max())
        if not items:
            rule = "needs the length of the data: files of --data-path, or a train_data_loader that has one"
            raise ConfigError([Finding(flag, epochs, rule, "give --train-iters")])
        sum = f"{epochs:g} x {items} items of train_data_loader, {draws} a step"
        iterations = int(epochs * items) // draws
        if not iterations:
            raise ConfigError([Finding(flag, epochs, f"{sum}, is less than one iteration", "raise it")])
        config.train_for(iterations)
        log(f"{flag} {epochs:g}: {sum} = --train-iters {iterations}")

    def open(self, config: AllConfig, forward_step: ForwardStep, iteration: int, consumed_samples: int) -> RunData:
        """The run's iterators: that of training continues after `iteration` steps that took `consumed_samples`, with
        --new-dataset it begins anew, as that of validation always does. All ranks call this. Raises ValueError, besides
        that of `build_pretraining_data_loader` and `endless`, if the first rank of this tensor-parallel group has no
        training data (but for --skip-train, and on a pipeline's middle stage), or for a train_data_loader beside
        a batch size that changes or --max_train_samples, which choose samples of a dataset."""
        if config.training_config.checkpoint.new_dataset:
            iteration = consumed_samples = 0
        train, valid, epoch = self._loaders(config, forward_step.draws, consumed_samples)
        skip = 0 if self.train_data_loader is None else iteration * forward_step.draws
        own = Tensor(np.array([[train is not None, valid is not None, epoch or 0]], np.int64))
        of_all = parallel_state.get_world_group().all_gather(own).asnumpy()
        of_group = of_all[list(parallel_state.get_tensor_model_parallel_group().ranks)]
        if not (of_group[0, 0] or config.training_config.skip_train or _is_in_the_middle()):
            raise ValueError(
                "pretrain: pass train_valid_test_datasets_provider or train_data_loader"
                if self.provider is None
                else "train_valid_test_datasets_provider: gave no training dataset; check --data-path and --split"
            )
        sends = of_group[0].astype(bool) & ~of_group.all(0) & (not forward_step.is_of_a_script)
        return RunData(
            train=_opened(train, skip, sends[0], "training"),
            valid=_opened(valid, 0, sends[1], "validation"),
            is_evaluated=bool(of_all[:, 1].any()),
            samples_per_epoch=int(of_all[:, 2].max()) or None,
        )

    def _loaders(
        self, config: AllConfig, draws: int, consumed_samples: int
    ) -> tuple[Iterable[Any] | None, Iterable[Any] | None, int | None]:
        """(Training loader, validation loader, samples of an epoch) on this rank; each None where it has none, or where
        it is unknown."""
        train, valid = (_in_draws(given, draws) for given in (self.train_data_loader, self.valid_data_loader))
        most = config.dataset_config.max_train_samples
        if train is not None and (config.batch_sizes.changes or most):
            flag = "--rampup-batch-size" if config.batch_sizes.changes else "--max_train_samples"
            raise ValueError(f"train_data_loader: gives whole steps, {flag} chooses samples; give a dataset")
        epoch = len(train) * config.dataset_config.global_batch_size // draws if isinstance(train, Sized) else None
        if self.provider is None or (train is not None and valid is not None):
            return train, valid, epoch
        samples = get_train_valid_test_num_samples(config)
        train_set, valid_set, _ = self.provider(samples)
        if train is None and train_set is not None and not config.training_config.skip_train:
            train_set = train_set if most is None else FirstSamples(train_set, most, samples[0])
            train = build_pretraining_data_loader(train_set, consumed_samples, config, draws)
            epoch = getattr(train_set, "samples_per_epoch", None)
        if valid is None and valid_set is not None and config.training_config.eval_iters:
            valid = build_pretraining_data_loader(valid_set, 0, config, draws, is_training=False)
        return train, valid, epoch


def _in_draws(loader: Iterable[Any] | None, draws: int) -> Iterable[Any] | None:
    """The loader, whose items are single micro-batches if it is our own loader and draws > 1."""
    return loader.in_micro_batches() if draws > 1 and isinstance(loader, StepLoader) else loader


def _is_in_the_middle() -> bool:
    """Whether this pipeline stage is neither the first, which reads tokens, nor the last, which computes the loss."""
    ends = parallel_state.is_pipeline_first_stage, parallel_state.is_pipeline_last_stage
    return not any(is_end(ignore_virtual=True) for is_end in ends)
