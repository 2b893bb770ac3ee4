"""MindFormers' Trainer over `pretrain`: the names by which its scripts start a run."""

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from mindspore import nn

from parallel_core.config import AllConfig
from parallel_core.config.base import has_type, type_name
from parallel_core.config.serialise import build
from parallel_core.config.tree import OPTIONS, path_of
from parallel_core.data.epochs import length_of_training
from parallel_core.data.loader import Batch, FirstSamples
from parallel_core.findings import ConfigError
from pynative.startup.log import log
from pynative.training import callbacks as known_callbacks
from pynative.training.callbacks import Callback, TrainingState
from pynative.training.training import pretrain
from pynative.transformer.gpt_model import GPTModel

PAGE = 'see "A run of a Trainer" in docs/migrating.md'

OTHER_NAMES = {
    "num_train_epochs": "epochs",
    "max_steps": "training_iters",
    "per_device_train_batch_size": "batch_size",
    "gradient_accumulation_steps": "micro_batch_num",
    "warmup_steps": "lr_warmup_iters",
    "max_grad_norm": "clip_grad",
    "logging_steps": "log_interval",
    "save_steps": "save_interval",
}
"""The configuration's name of a setting, by the Trainer's."""
WITHOUT_EFFECT = {"sink_mode", "sink_size"}
"""Settings of the static graph, which are accepted and ignored."""
_SETTINGS = {
    path.rpartition(".")[2]: path
    for path in reversed(OPTIONS)
    if path.startswith(("training_config.", "optimizer_config.", "dataset_config."))
}
_LENGTHS = {path_of(name) for name in ("training_iters", "train_samples", "epochs")}


class TrainingArguments:
    """Settings that override a configuration's: options of training, optimizer and data by their names, or by a
    Trainer's (`OTHER_NAMES`). Settings of None, whatever their name, and those of `WITHOUT_EFFECT` do nothing. Raises
    ValueError for another unknown name or a value of another type."""

    def __init__(self, **settings: Any) -> None:
        vars(self).update(settings)
        self.ignored = sorted(WITHOUT_EFFECT & settings.keys())
        self.values: dict[str, Any] = {}
        """The values by option path."""
        for name in (name for name in settings if name not in WITHOUT_EFFECT and settings[name] is not None):
            path = _SETTINGS.get(OTHER_NAMES.get(name, name))
            if path is None:
                near = difflib.get_close_matches(name, [*OTHER_NAMES, *WITHOUT_EFFECT, *_SETTINGS], 2)
                raise ValueError(f"TrainingArguments({name}=...): is none; near are {' '.join(near) or 'none'}; {PAGE}")
            if not has_type(settings[name], OPTIONS[path].type):
                kind = type_name(OPTIONS[path].type)
                raise ValueError(f"TrainingArguments({name}={settings[name]!r}): must be of type {kind}")
            self.values[path] = settings[name]


def revised(config: AllConfig, changes: dict[str, Any], samples: int) -> AllConfig:
    """A new configuration with the values `changes`, by option path, and everything that follows from them. A number of
    iterations, samples or epochs among them replaces whichever of these the configuration has.

    samples: the number of samples of an epoch; 0: they are counted in the data files. Raises `ConfigError` for values
    that do not fit each other, ValueError if `config` was changed since it was built, or does not know from which
    values that was.
    """
    if not config.given or build(config.given) != config:
        raise ValueError(
            "Trainer: all_config was changed since it was built; give what is changed to TrainingArguments"
        )
    says_how_long = not _LENGTHS.isdisjoint(changes)
    values = {path: value for path, value in config.given.items() if not (says_how_long and path in _LENGTHS)} | changes
    length = length_of_training(values, samples)
    if length.findings:
        raise ConfigError(length.findings)
    for note in length.notes:
        log(note)
    found = build(values | length.values)
    found.parallel_config.found_device = config.parallel_config.found_device
    return found


class Trainer:
    """A run with the arguments of MindFormers' Trainer, of a network that a configuration describes.

    Args:
        args: settings of the run, which override the configuration's.
        task: "text_generation" or "general", which mean the same.
        all_config: as `mapping.init_configs_from_yaml` makes it.
        train_dataset, eval_dataset: an object with a length and items, or a MindSpore dataset, which is read whole. An
            item is ids [s + 1], alone or as `input_ids`, or a dict of tokens, labels, loss_mask, position_ids [s].
        callbacks: objects, dicts as in files (`type`, the name of a class of `pynative.training.callbacks`, and its
            arguments), or such names alone.
        model_provider_func: as `pretrain` takes it; by default it makes GPTModel.

    Raises ValueError if all_config or train_dataset is missing, for another task, args of another class, a callback's
    name that is none, and for any argument that is not listed here; for those in `instead` the message says what to
    give.
    """

    instead: ClassVar[Mapping[str, str]] = {
        "model_name": "there are no models by name; give the configuration of one as all_config",
        "model": "a network is made for every stage; give a function that makes it as model_provider_func",
        "wrapper": "the step is made of all_config, whose loss_scaler and clip_grad say what the wrapper says",
        "optimizers": "the optimizer is made of all_config, whose optimizer_type names it",
        "tokenizer": "training reads ids; a file of ids is written by `python -m mapping preprocess`",
    }
    """What to give instead of an argument of MindFormers', by the argument's name."""

    def __init__(
        self,
        args: TrainingArguments | None = None,
        task: str = "text_generation",
        all_config: AllConfig | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        callbacks: Sequence[Callback | Mapping[str, Any] | str] = (),
        model_provider_func: Callable[..., nn.Cell] | None = None,
        **others: Any,
    ) -> None:
        wrong = [f"{name}: {self.instead.get(name, 'is not taken')}" for name in others]
        wrong += [] if task in ("general", "text_generation") else [f"task {task}: must be text_generation"]
        if not isinstance(args, TrainingArguments | None):
            wrong.append("args: must be TrainingArguments; a file is read by mapping.init_configs_from_yaml")
        wrong += [] if all_config is not None else ["all_config: must be given"]
        wrong += [] if train_dataset is not None else ["train_dataset: must be given"]
        if wrong or all_config is None:
            raise ValueError("\n".join((f"Trainer: {PAGE}", *wrong)))
        self.args, self.all_config = args or TrainingArguments(), all_config
        self.model_provider_func = model_provider_func
        self.train_dataset = Samples(train_dataset)
        self.eval_dataset = None if eval_dataset is None else Samples(eval_dataset)
        self.callbacks = [entry if isinstance(entry, Callback) else _made(entry) for entry in callbacks]

    def train(self, train_checkpoint: str | None = None, resume_training: bool | None = None) -> TrainingState:
        """Train, and return the state at the end. train_checkpoint, resume_training: if given, they replace the
        options `load_checkpoint` (the checkpoint that is loaded first) and `resume_training`. Raises ValueError if they
        are of other types, and the errors of `revised` and `pretrain`."""
        for name in self.args.ignored:
            log(f"ignored: {name}: the dynamic graph is not compiled")
        how = TrainingArguments(load_checkpoint=train_checkpoint, resume_training=resume_training)
        config = revised(self.all_config, self.args.values | how.values, len(self.train_dataset))

        def datasets(samples: Sequence[int]) -> tuple[FirstSamples | None, FirstSamples | None, None]:
            return _repeated(self.train_dataset, samples[0]), _repeated(self.eval_dataset, samples[1]), None

        def network(**stage: bool) -> nn.Cell:
            return GPTModel(config.model_config, **stage)

        return pretrain(datasets, self.model_provider_func or network, all_config=config, callbacks=self.callbacks)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"Trainer has no {name}: {PAGE}")


def _made(entry: Mapping[str, Any] | str) -> Callback:
    options = {"type": entry} if isinstance(entry, str) else dict(entry)
    name = options.pop("type", None)
    kind = getattr(known_callbacks, str(name), None)
    if not (isinstance(kind, type) and issubclass(kind, Callback)):
        raise ValueError(f"Trainer: callbacks: {name} is no class of pynative.training.callbacks; {PAGE}")
    return kind(**options)


class Samples:
    """A data set of any form that a Trainer takes, whose items are dicts of arrays."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = [*_rows(dataset)] if hasattr(dataset, "create_dict_iterator") else dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, i: int) -> Batch:
        item = self._dataset[i]
        if isinstance(item, Mapping) and "tokens" in item:
            return dict(item)
        ids = np.asarray(item["input_ids"] if isinstance(item, Mapping) else item, np.int32)
        ones, positions = np.ones(len(ids) - 1, np.float32), np.arange(len(ids) - 1, dtype=np.int32)
        return {"tokens": ids[:-1], "labels": ids[1:], "loss_mask": ones, "position_ids": positions}


def _repeated(samples: Samples | None, size: int) -> FirstSamples | None:
    return None if samples is None or not size else FirstSamples(samples, len(samples), size)


def _rows(dataset: Any) -> Iterator[Batch]:
    """Yield the samples of a MindSpore dataset, whether its items are samples or batches."""
    for item in dataset.create_dict_iterator(num_epochs=1, output_numpy=True):
        if min(array.ndim for array in item.values()) == 1:
            yield item
        else:
            yield from (dict(zip(item, row, strict=True)) for row in zip(*item.values(), strict=True))
