"""A training by a configuration file has the losses of the command line that says the same."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from mapping import ConfigError, initialize_megatron
from tests.support.assets import asset
from tests.support.distributed import run
from tests.support.layouts import Rows
from tests.support.pretraining import BATCHES, pretrain_tiny

STOCK = asset("megatron_flags/gpt_config.yaml")


def losses(backend, flags: list[str], **arguments) -> list[float]:
    from pynative.training.callbacks import Callback

    found = []

    class Seen(Callback):
        def on_step_end(self, state) -> None:
            found.append(state.result.loss)

    pretrain_tiny(backend, flags, callbacks=[Seen()], **arguments)
    return found


def test_the_file_that_megatron_ships_trains_as_flags_do():
    """All keys of the file with smaller sizes: rotary positions, swiglu, a growing batch, a schedule in samples."""
    sizes = "--seq-length 16 --max-position-embeddings 16 --make-vocab-size-divisible-by 1"
    flags = (
        "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --vocab-size 511 --tokenizer-type NullTokenizer "
        "--swiglu --apply-layernorm-1p --disable-bias-linear --attention-dropout 0 --hidden-dropout 0 "
        "--position-embedding-type rope --rotary-percent 0.5 --untie-embeddings-and-output-weights "
        "--micro-batch-size 2 --global-batch-size 8 --rampup-batch-size 4 4 8 --train-samples 40 --eval-iters 0 "
        "--lr 0.002 --min-lr 0.0002 --lr-decay-style cosine --lr-decay-samples 40 --lr-warmup-samples 8 "
        "--weight-decay 0.1 --adam-beta2 0.95"
    )
    (of_file,) = run(1, losses, ["--yaml-cfg", str(STOCK), *sizes.split()])
    (of_flags,) = run(1, losses, [*flags.split(), *sizes.split()])
    assert of_file == of_flags and len(of_file) == 6


def losses_beside(folder: Path, content: dict[str, Any], flags: str = "", base: str = BATCHES, **more) -> list[float]:
    """Losses of a small model with these flags and a YAML file of this content."""
    (folder / "more.yaml").write_text(yaml.safe_dump(content))
    (found,) = run(1, losses, [*f"{base} {flags}".split(), "--yaml-cfg", str(folder / "more.yaml")], **more)
    return found


@pytest.mark.parametrize(
    "runner, flag",
    [
        ({"type": "MFTrainOneStepCell"}, "--clip-grad 0"),
        ({"max_grad_norm": 0.01}, "--clip-grad 0"),
        ({"use_clip_grad": True, "max_grad_norm": 0.01}, "--clip-grad 0.01"),
    ],
)
def test_gradients_are_clipped_as_the_runner_says(runner, flag, tmp_path):
    """runner_wrapper's clipping equals --clip-grad's; with SGD, whose update depends on a gradient's length, and norms
    other than Megatron's default of 1."""
    kind = "--optimizer sgd --lr 0.1"
    of_file = losses_beside(tmp_path, {"runner_wrapper": runner}, kind)
    (of_flag,) = run(1, losses, f"{BATCHES} {kind} {flag}".split())
    (of_default,) = run(1, losses, f"{BATCHES} {kind}".split())
    assert of_file == of_flag and of_file[1:] != of_default[1:]


ENDLESS = BATCHES.replace("--train-iters 2 ", "")
"""Flags of a run without a number of steps."""
IN_LAYOUTS = {
    "runner": lambda epochs: {"runner_config": {"epochs": epochs}},
    "sections": lambda epochs: {"training_config": {"epochs": epochs}},
    "nested": lambda epochs: {"train_config": {"ms_training_config": {"epochs": epochs}}},
    "Megatron's": lambda epochs: {"language_model": {}, "epochs": epochs},
}


def batches(items: int = 4) -> list[dict[str, np.ndarray]]:
    """A script's own loader: a step's samples in each item, or with forward_step_func a micro-batch's."""
    rows = [Rows()[i] for i in range(16)]
    size = 16 // items
    parts = [rows[i : i + size] for i in range(0, 16, size)]
    return [{name: np.stack([row[name] for row in part]) for name in part[0]} for part in parts]


@pytest.mark.parametrize("content", IN_LAYOUTS.values(), ids=IN_LAYOUTS)
def test_epochs_of_a_loader_are_counted(content, tmp_path):
    """1.5 epochs of a loader of 4 items are 6 steps, over which the learning rate decays, as with --train-iters 6."""
    of_file = losses_beside(tmp_path, content(1.5), base=ENDLESS, train_data_loader=batches())
    (of_flags,) = run(1, losses, f"{ENDLESS} --train-iters 6".split(), train_data_loader=batches())
    assert of_file == of_flags and len(of_file) == 6


def forward_step(data_iterator, model):
    """Megatron's form: (loss of the next micro-batch, function of it that returns (loss, {"lm loss": loss}))."""
    import mindspore as ms

    batch = {name: ms.Tensor(value) for name, value in next(data_iterator).items()}
    return model(**batch), lambda output: (output, {})


def no_model(**stage):
    raise AssertionError


def test_a_step_of_several_items_is_one_iteration(tmp_path):
    """An epoch of 8 items, each a micro-batch of half a step for forward_step_func, is four iterations."""
    more = {"train_data_loader": batches(8), "forward_step_func": forward_step}
    assert len(losses_beside(tmp_path, IN_LAYOUTS["runner"](1), base=ENDLESS, **more)) == 4


@pytest.mark.parametrize(
    "content, loader, rule",
    [
        ({"runner_config": {"epochs": 1}}, iter(batches()), "--num_train_epochs 1: needs the length of the data"),
        ({"runner_config": {"epochs": 0.2}}, batches(), "0.2 x 4 items .*, 1 a step, is less than one iteration"),
        (
            {"runner_config": {"epochs": 1}, "optimizer_config": {"lr_warmup_iters": 4}},
            batches(),
            "--lr-warmup-iters 4: must be less than the decay, --lr-decay-iters 4",
        ),
        ({"training_config": {"seed": 1}}, batches(), "--train-iters or .*: must be given"),
    ],
)
def test_a_length_that_is_none_is_named_before_the_model_is_built(content, loader, rule, tmp_path):
    """No length, epochs without one or below a step, and too long a warm-up are ConfigErrors before the model."""
    with pytest.raises(ConfigError, match=rule):
        losses_beside(tmp_path, content, base=ENDLESS, train_data_loader=loader, model_provider_func=no_model)


@pytest.mark.parametrize(
    "missing, asked_for",
    [
        (
            "--train-iters 2",
            {
                "training_config.training_iters": "--train-iters",
                "training_config.train_samples": "--train-samples",
                "training_config.epochs": "--num_train_epochs",
            },
        ),
        ("--lr 1e-3", {"optimizer_config.learning_rate": "--lr"}),
    ],
)
def test_what_a_training_must_be_told_is_asked_for_as_on_the_command_line(missing, asked_for, tmp_path, capsys):
    """A missing length or learning rate is reported by rank 0 without a traceback, by the file's keys; there is no
    default."""
    (tmp_path / "x.yaml").write_text("training_config: {seed: 2}")
    assert missing in BATCHES
    argv = BATCHES.replace(missing, "").split()
    in_file = " or ".join(f"{key} ({flag})" for key, flag in asked_for.items())
    for words, names in (
        ([*argv, "--yaml-cfg", str(tmp_path / "x.yaml")], in_file),
        (argv, " or ".join(asked_for.values())),
    ):
        with pytest.raises(SystemExit) as ended:
            initialize_megatron(argv=words, check_files=False)
        assert ended.value.code == 2 and capsys.readouterr().err.splitlines() == [
            f"error: {names}: must be given; add it"
        ]
