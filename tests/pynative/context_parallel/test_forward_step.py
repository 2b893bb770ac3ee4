"""A user's own forward step, in Megatron's two forms, on cut sequences."""

import pytest

from tests.support.engine import TINY
from tests.support.forward_steps import own_batch, train_on_sums
from tests.support.layouts import check_layout, train


def mean_of_the_model(data_iterator, model):
    """Megatron's forward step with a loss function that returns (loss, dict), the loss being the model's mean over
    whole sequences."""
    return model(**own_batch(data_iterator)), lambda loss: (loss, {"lm loss": loss})


def train_on_means(backend, flags: str) -> tuple:
    return train(backend, flags, forward_step_func=mean_of_the_model)


def train_on_a_batch_cut_by_the_script(backend, flags: str) -> tuple:
    """Train with a `get_batch_func` that cuts the step's whole batch itself and returns a plain dict, no longer marked
    as cut."""
    return train(backend, flags, get_batch_func=lambda data_iterator: dict(own_batch(data_iterator)))


@pytest.mark.parametrize("averaging", ["", "--calculate-per-token-loss"])
@pytest.mark.parametrize("algorithm", ["megatron_cp_algo", "ulysses_cp_algo"])
def test_a_batch_is_not_cut_twice(algorithm, averaging):
    """A batch that the script cut by get_batch_on_this_cp_rank, as Megatron's do, is not cut again, which would leave a
    quarter of the tokens."""
    layout = f"--context-parallel-size 2 --context-parallel-algo {algorithm}"
    check_layout(f"{TINY} --global-batch-size 4 {averaging}", 2, layout, how=train_on_a_batch_cut_by_the_script)


FORMS = [(train_on_means, ""), (train_on_sums, ""), (train_on_sums, "--calculate-per-token-loss")]
"""(how to train, flags). A mean does not say its number of tokens, so it has no row with --calculate-per-token-loss."""


@pytest.mark.parametrize("layout", ["", "--context-parallel-algo ulysses_cp_algo"])
@pytest.mark.parametrize(("how", "flags"), FORMS)
def test_both_forms(how, flags, layout):
    """A forward step that returns a mean, or a sum with its token count: losses, gradients and weights are one
    process's, though ranks have different token counts."""
    check_layout(f"{TINY} --global-batch-size 4 {flags}", 2, f"--context-parallel-size 2 {layout}", how=how)


def test_sums_are_the_default_step():
    """With --calculate-per-token-loss a script's own sums give the same losses as the default step, whose model
    averages."""
    from tests.support.layouts import reference

    flags = f"{TINY} --global-batch-size 4 --calculate-per-token-loss"
    assert reference(flags, train_on_sums)[0] == pytest.approx(reference(flags)[0], rel=1e-6)
