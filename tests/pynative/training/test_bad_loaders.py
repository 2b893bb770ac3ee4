"""A user's loader that gives nonsense ends the run before it trains on it, naming rank, step, key, value and place."""

import re
from collections.abc import Callable

import numpy as np
import pytest

from tests.support.distributed import SECONDARY, outcomes, run
from tests.support.engine import TINY
from tests.support.layouts import Rows
from tests.support.pretraining import pretrain_tiny

FLAGS = f"{TINY} --global-batch-size 4"


def rows(number: int = 4) -> dict[str, np.ndarray]:
    """A good batch of a whole step: of `number` samples, keys to arrays."""
    data = Rows()
    return {name: np.stack([data[i][name] for i in range(number)]) for name in data[0]}


def shifted(name: str, by: int) -> dict[str, np.ndarray]:
    """A good batch in which one id of the entry `name` is off by `by`."""
    batch = rows() | {"loss_mask": np.ones((4, 16), np.float32)}
    batch[name] = batch[name].copy()
    batch[name][1, 5] += by
    return batch


def without(name: str) -> dict[str, np.ndarray]:
    return {key: array for key, array in rows().items() if key != name}


def longer(batch: dict[str, np.ndarray], length: int) -> dict[str, np.ndarray]:
    return {name: np.resize(array, (len(array), length)) for name, array in batch.items()}


MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "id beyond": (lambda: shifted("tokens", 5000), r"tokens\[1, 5\] is 50\d\d: must be an id from 0 to 63"),
    "id below": (lambda: shifted("tokens", -5000), r"tokens\[1, 5\] is -49\d\d: must be an id from 0 to 63"),
    "label": (lambda: shifted("labels", 5000), r"labels\[1, 5\] is 50\d\d: must be an id from 0 to 63"),
    "position": (lambda: shifted("position_ids", 16), r"position_ids\[1, 5\] is 21: must be an id from 0 to 15"),
    "length": (lambda: longer(rows(), 20), r"tokens has shape \[\d, 20\], must have \[\d, 16\]: --seq-length is 16"),
    "rows": (lambda: rows(8), r"tokens has \d rows, \d are due"),
    "floats": (lambda: rows() | {"tokens": rows()["tokens"] * 1.0}, "tokens is float64: must be int32 or int64"),
    "no tokens": (lambda: without("tokens"), "tokens is missing: "),
}
OF_BATCHES = {
    "no labels": (lambda: without("labels"), "labels is missing: GPTModel needs it, the batch has tokens, loss_mask"),
    "unknown": (lambda: rows() | {"lables": rows()["labels"]}, "lables is no argument of GPTModel, which takes tokens"),
    "a tuple": (lambda: tuple(rows().values()), "the loader gave a tuple: must be a dict of the model's arguments"),
}
"""Mistake -> (function that makes the batch, words of the error), for loaders whose dicts are the model's arguments."""


def of_a_script(data_iterator, model):
    """Megatron's forward step of a script that has other names for the entries and computes the model's arguments."""
    batch = {name.removeprefix("my "): array + 0 for name, array in next(data_iterator).items()}
    return model(**batch), lambda loss: (loss, {"lm loss": loss})


def micro_batches(steps: list[dict[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    """Each step's batch as two micro-batches, with other names for its entries."""
    halves = [{name: np.split(array, 2) for name, array in step.items()} for step in steps]
    return [{f"my {name}": both[i] for name, both in step.items()} for step in halves for i in (0, 1)]


def said(backend, flags: str, names: list[str], in_megatrons_form: bool) -> dict[str, str]:
    """Mistake -> text of the error of a training whose second step has it."""
    answers = {}
    for name in names:
        steps, form = [rows(), (MISTAKES | OF_BATCHES)[name][0]()], {}
        if in_megatrons_form:
            steps, form = micro_batches(steps), {"forward_step_func": of_a_script}
        try:
            pretrain_tiny(backend, f"{FLAGS} {flags}", train_data_loader=steps, **form)
        except ValueError as error:
            answers[name] = str(error)
    return answers


@pytest.mark.parametrize("in_megatrons_form", [False, True])
@pytest.mark.parametrize(
    ("world", "flags", "only"),
    [(1, "", None), (2, "--tensor-model-parallel-size 2 --kernels ops", ["id beyond", "id below", "label"])],
)
def test_nonsense_is_named(world, flags, only, in_megatrons_form):
    """Each mistake's error has rank, step, key, value and place, on each rank that has it; in Megatron's form it names
    the model's argument."""
    expected = MISTAKES if in_megatrons_form else MISTAKES | OF_BATCHES
    names = only or list(expected)
    for rank, answers in enumerate(run(world, said, flags, names, in_megatrons_form)):
        found = {name: answers.get(name, "trained on") for name in names}
        right = [name for name in names if re.match(f"rank {rank}, step 2: {expected[name][1]}", found[name])]
        assert right == names, found


def train_on(backend, flags: str, of_rank: dict[int, dict[str, np.ndarray]]) -> None:
    """Train on good data, but for the ranks in `of_rank`, whose first step is the batch given there."""
    pretrain_tiny(backend, f"{FLAGS} {flags}", train_data_loader=[of_rank.get(backend.rank, rows(2))])


def test_one_rank_of_a_job():
    """One rank's loader gives the global batch instead of the rank's own, or a wrong id: it raises, and the other rank
    neither hangs nor trains on."""
    wrong = {name: array[:2] for name, array in shifted("tokens", 99).items()}
    for mistake, message in ((rows(4), "tokens has 4 rows, 2 are due"), (wrong, r"tokens\[1, 5\] is 1")):
        other, answer = outcomes(2, train_on, "--global-batch-size 4", {1: mistake})
        assert re.search(f"rank 1, step 1: {message}", answer.text)
        assert other.kind in SECONDARY


def mean_as_a_sum(data_iterator, model):
    """A forward step that takes the model's mean loss for each token's, with context parallelism."""
    from pynative.context_parallel import get_batch_on_this_cp_rank

    batch = get_batch_on_this_cp_rank(next(data_iterator))
    mask = batch["loss_mask"]
    count = mask.sum()
    return model(**batch), lambda loss: (loss * count, count, {"lm loss": (loss * count, count)})


def without_a_mask(data_iterator, model):
    """A forward step that withholds the loss mask from the model and applies it to the returned loss, as Megatron's
    older scripts."""
    batch = next(data_iterator)
    mask = batch.pop("loss_mask")
    return model(**batch), lambda loss: ((loss * mask).sum(), mask.sum(), {"lm loss": (loss, mask.sum())})


@pytest.mark.parametrize(
    ("world", "function", "message"),
    [
        (2, mean_as_a_sum, "with --context-parallel-size the model's loss is the whole sequences' mean"),
        (1, without_a_mask, "loss_mask is missing: the model gives the mean of the losses that count"),
    ],
)
def test_a_mean_is_not_taken_for_losses(world, function, message):
    """Such forward steps are errors: the loss would look right, but its gradient would be another."""
    with pytest.raises(ValueError, match=message):
        run(world, train_in_megatrons_form, function)


def train_in_megatrons_form(backend, function) -> None:
    flags = "--context-parallel-size 2" if backend.world_size == 2 else ""
    pretrain_tiny(backend, f"{FLAGS} {flags}", forward_step_func=function)
