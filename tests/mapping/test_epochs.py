"""Flags of HuggingFace's Trainer, as guides to DeepSpeed print them: epochs, samples, gradient checkpointing in
Megatron's terms."""

import numpy as np
import pytest

from mapping.reading import read
from parallel_core.data.blended import build_train_valid_test_datasets
from parallel_core.data.datasets import datasets_provider
from parallel_core.data.from_config import gpt_dataset_config, samples_per_epoch
from tests.support.corpus import write_corpus

MODEL = (
    "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 --vocab-size "
    "512 --per_device_train_batch_size 1 --global-batch-size 8 --lr 1e-3 --tokenizer-type NullTokenizer"
)


def reading(flags: str):
    """The reading of a small model's command line with these flags on two processes."""
    return read(f"{MODEL} {flags}".split(), world_size=2)


@pytest.fixture(scope="module")
def corpora(tmp_path_factory) -> list[str]:
    """Prefixes of two data sets of 300 documents."""
    folder, draws = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    return [write_corpus(folder / name, draws.integers(1, 200, 300).tolist()) for name in "ab"]


@pytest.mark.parametrize("flags", ["--data-path {0} --split 6,3,1", "--train-data-path {0} {1}", "--data-path 1.0 {1}"])
def test_an_epoch_is_what_the_data_give_once(flags, corpora):
    """`samples_per_epoch`, counted from the documents' lengths, is the number of samples of the data sets that a run
    builds for one pass."""
    config = reading(f"--train-iters 1 {flags.format(*corpora)}").config
    whole = gpt_dataset_config(config)
    prefixes, _ = (whole.blend_per_split or [whole.blend])[0]
    parts = [
        build_train_valid_test_datasets(
            gpt_dataset_config(reading(f"--train-iters 1 --data-path {prefix} --split {config_split(flags)}").config),
            [None, 0, 0],
        )[0]
        for prefix in prefixes
    ]
    assert samples_per_epoch(config) == sum(map(len, parts)) > 50


def test_an_epoch_of_labelled_data_has_samples_of_twice_the_length(corpora):
    """With --train-mode finetune, where a sample is s tokens and s labels, an epoch is what the data give once, too."""
    config = reading(f"--train-iters 1 --data-path {corpora[0]} --split 1,0,0 --train-mode finetune").config
    train, *_ = datasets_provider(config)([None, 0, 0])
    assert samples_per_epoch(config) == len(train) > 50


def config_split(flags: str) -> str:
    """The --split that the training data of these flags have."""
    return "6,3,1" if "6,3,1" in flags else "1,0,0" if "train" in flags else "969,30,1"


def test_epochs_are_counted_in_iterations(corpora):
    """--num_train_epochs gives the number of iterations, for training and for the decay of the learning rate, with a
    note that shows the calculation."""
    found = reading(f"--num_train_epochs 2.5 --data-path {corpora[0]} --lr-warmup-iters 3")
    samples, training = samples_per_epoch(found.config), found.config.training_config
    assert found.errors == [] and training.training_iters == int(2.5 * samples) // 8 == found.args.train_iters
    assert found.config.optimizer_config.lr_decay_iters == training.training_iters
    sum = f"2.5 x {samples} samples / --global-batch-size 8 = --train-iters {training.training_iters}"
    assert found.notes == [f"--num_train_epochs 2.5: {sum}"]


@pytest.mark.parametrize(
    "flags, iterations",
    [
        ("--num_train_epochs 1 --max_train_samples 500", 500 // 8),
        ("--num_train_epochs 1 --max_train_samples 40 --data-path {0}", 40 // 8),
        ("--num_train_epochs 3 --train-iters 7", 7),
        ("--num_train_epochs 3 --train-samples 80", 10),
    ],
)
def test_what_goes_before_the_data(flags, iterations, corpora):
    """--max_train_samples, --train-iters and --train-samples count before the length of the data."""
    found = reading(flags.format(*corpora))
    assert found.errors == [] and found.config.training_config.training_iters == iterations


@pytest.mark.parametrize(
    "flags, rule",
    [
        ("--num_train_epochs 1 --mock-data", "needs the length of the data, which files of --data-path"),
        ("--num_train_epochs 1 --data-path 1 {0} 2 {1}", "needs the length of the data, which files of --data-path"),
        ("--num_train_epochs 1 --data-path {0}/nowhere", "needs the length of the data: "),
        ("--num_train_epochs 1 --max_train_samples 7", "1 x 7 samples / --global-batch-size 8 is less than one iter"),
        ("--num_train_epochs 0", "must be above 0"),
        ("--max_train_samples 8", "must be given"),
    ],
)
def test_epochs_without_a_length_are_refused(flags, rule, corpora):
    """--num_train_epochs without data whose length is known, or with less than an iteration, is one error."""
    (error,) = reading(flags.format(*corpora)).errors
    assert rule in error


def test_epochs_are_left_to_a_scripts_own_loader_where_no_data_are_named():
    """The number of epochs is kept for a script's own loader if no flag names data, and iterations stay open (0)."""
    found = reading("--num_train_epochs 1 --lr-warmup-iters 3")
    training = found.config.training_config
    assert found.errors == found.notes == [] and (training.epochs, training.training_iters) == (1, 0)


def test_iterations_go_before_epochs_and_say_so(capsys):
    """--train-iters beside --num_train_epochs counts, and a line says that the epochs do nothing."""
    reading("--num_train_epochs 3 --train-iters 7").print_notes()
    assert "ignored: --num_train_epochs: no effect: --train-iters" in capsys.readouterr().out


LONG = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"


@pytest.mark.parametrize("value, same_as", [("1", LONG), ("True", LONG), ("0", ""), ("False", "")])
def test_gradient_checkpointing_recomputes_every_layer(value, same_as):
    """--gradient_checkpointing true equals full uniform recompute of single layers; false equals none."""
    found = reading(f"--train-iters 1 --gradient_checkpointing {value}")
    assert found.errors == [] and found.config == reading(f"--train-iters 1 {same_as}").config


@pytest.mark.parametrize("other", ["--recompute-granularity selective", "--recompute-activations"])
def test_it_does_not_go_with_another_form(other):
    """--gradient_checkpointing beside another recompute flag is an error with both."""
    (error,) = reading(f"--train-iters 1 --gradient_checkpointing 1 {other}").errors
    assert "contradicts" in error and other in error and "--gradient_checkpointing" in error
