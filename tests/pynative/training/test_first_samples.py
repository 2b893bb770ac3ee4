"""--max_train_samples: a run reads the first samples of its data, over and over."""

import pytest

from tests.support.distributed import run
from tests.support.layouts import Rows
from tests.support.pretraining import BATCHES, pretrain_tiny

MODEL = BATCHES.replace("--train-iters 2", "--micro-batch-size 1 --num-workers 0")


def samples_read(backend, flags: str) -> tuple[list[int], int | None]:
    """(numbers of the samples in the order in which this rank reads them, samples of an epoch or None)."""
    numbers = []

    class Noted(Rows):
        def __getitem__(self, i):
            numbers.append(i)
            return super().__getitem__(i)

    state = pretrain_tiny(
        backend, f"{MODEL} {flags}", train_valid_test_datasets_provider=lambda samples: (Noted(),) * 3
    )
    return numbers, state.samples_per_epoch


@pytest.mark.parametrize(
    "flags, numbers, epoch",
    [
        ("--train-iters 3", [*range(12)], None),
        ("--train-iters 3 --max_train_samples 5", [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1], 5),
        ("--num_train_epochs 2 --max_train_samples 6", [0, 1, 2, 3, 4, 5] * 2, 6),
        ("--train-iters 5 --max_train_samples 1000", [*range(16), *range(4)], 16),
    ],
)
def test_the_first_samples_are_read_over_and_over(flags, numbers, epoch):
    """--max_train_samples 5: samples 0 - 4 again and again; two replicas together read them in the data's order."""
    ranks = run(2, samples_read, flags)
    assert sorted(number for read, _ in ranks for number in read) == sorted(numbers)
    assert {samples for _, samples in ranks} == {epoch}


def own_steps(backend, flags: str) -> None:
    pretrain_tiny(backend, f"{MODEL} {flags}", train_data_loader=[{}])


def test_whole_steps_cannot_be_cut():
    """--max_train_samples with a script's loader of whole steps is a ValueError that names both."""
    with pytest.raises(ValueError, match=r"train_data_loader: .* --max_train_samples"):
        run(1, own_steps, "--train-iters 1 --max_train_samples 5")
