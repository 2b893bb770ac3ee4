"""A user's own forward step, in Megatron's two forms, on cut sequences."""

import pytest

from tests.support.engine import TINY
from tests.support.forward_steps import own_batch, train_on_sums
from tests.support.layouts import check_layout, train


def mean_of_the_model(data_iterator, model):
    """(loss, dict): the model's loss is that of the whole sequences."""
    return model(**own_batch(data_iterator)), lambda loss: (loss, {"lm loss": loss})


def train_on_means(backend, flags: str) -> tuple:
    return train(backend, flags, forward_step_func=mean_of_the_model)


def train_on_a_batch_cut_by_the_script(backend, flags: str) -> tuple:
    """`get_batch_func` cuts the step's whole batch itself, and makes a dict of its own of the result."""
    return train(backend, flags, get_batch_func=lambda data_iterator: dict(own_batch(data_iterator)))


@pytest.mark.parametrize("averaging", ["", "--calculate-per-token-loss"])
@pytest.mark.parametrize("algorithm", ["megatron_cp_algo", "ulysses_cp_algo"])
def test_a_batch_is_not_cut_twice(algorithm, averaging):
    """Megatron's scripts call get_batch_on_this_cp_rank; then a quarter of the tokens would be trained on."""
    layout = f"--context-parallel-size 2 --context-parallel-algo {algorithm}"
    check_layout(f"{TINY} --global-batch-size 4 {averaging}", 2, layout, how=train_on_a_batch_cut_by_the_script)


FORMS = [(train_on_means, ""), (train_on_sums, ""), (train_on_sums, "--calculate-per-token-loss")]
"""A mean says nothing of its number of tokens, so it is not weighed per token."""


@pytest.mark.parametrize("layout", ["", "--context-parallel-algo ulysses_cp_algo"])
@pytest.mark.parametrize(("how", "flags"), FORMS)
def test_both_forms(how, flags, layout):
    """Losses reported, gradients and weights are one process's; token counts differ between the ranks."""
    check_layout(f"{TINY} --global-batch-size 4 {flags}", 2, f"--context-parallel-size 2 {layout}", how=how)


def test_sums_are_the_default_step():
    """Per token, own sums give what the model's mean and the framework's count give."""
    from tests.support.layouts import reference

    flags = f"{TINY} --global-batch-size 4 --calculate-per-token-loss"
    assert reference(flags, train_on_sums)[0] == pytest.approx(reference(flags)[0], rel=1e-6)
