"""The functions that docs/loaders.md prints train as they are, under every layout as on one process."""

import pytest

from tests.support.engine import TINY
from tests.support.layouts import check_layout, reference
from tests.support.own_data import (
    train_on_keys,
    train_on_our_loader,
    train_on_steps,
    train_where_data_are,
    train_without_a_function,
)

FLAGS = f"{TINY} --num-layers 3 --global-batch-size 8"
TP2, PP2 = "--tensor-model-parallel-size 2", "--pipeline-model-parallel-size 2"
PP3 = "--pipeline-model-parallel-size 3"
LAYOUTS = [(2, TP2), (2, PP2), (2, "")]
FORMS = [train_on_steps, train_on_our_loader, train_where_data_are]


@pytest.mark.parametrize(("world", "layout"), LAYOUTS, ids=["tp2", "pp2", "dp2"])
@pytest.mark.parametrize("how", FORMS)
def test_the_page_trains(how, world, layout):
    """Losses and gradients by each of the page's loops (FORMS) on tp2, pp2 and dp2 equal those of one process."""
    check_layout(FLAGS, world, layout, how=how)


@pytest.mark.parametrize(
    ("how", "world", "layout"),
    [
        (train_where_data_are, 3, PP3),
        (train_without_a_function, 3, PP3),
        (train_without_a_function, 2, TP2),
        (train_on_keys, 2, TP2),
    ],
)
def test_data_on_the_first_tensor_rank_alone(how, world, layout):
    """A loader that only the first tensor-parallel rank of the first and last stage has gives one process's losses,
    gradients and weights."""
    check_layout(FLAGS, world, layout, how=how)


def test_every_form_trains_the_same():
    """The page's three forms of giving own data read the same rows in the same order, so they have the same losses
    (1e-6)."""
    expected = reference(FLAGS)
    for how in (train_on_our_loader, train_where_data_are, train_on_keys):
        assert reference(FLAGS, how).losses == pytest.approx(expected.losses, rel=1e-6)
