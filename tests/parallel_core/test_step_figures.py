"""Figures that a model adds to a step's report (losses and loads of experts), and those that are logged."""

import numpy as np

from parallel_core.step_figures import figures_of, from_vector, logged, logged_by_layer, to_vector, tokens_by_expert
from tests.support.engine import config_of

SIZES = (
    "--num-layers 4 --hidden-size 8 --num-attention-heads 2 --vocab-size 32 --seq-length 4 --max-position-embeddings 4 "
    "--micro-batch-size 1 --train-iters 1 --lr 1e-3 --tokenizer-type NullTokenizer"
)


def model(flags=""):
    """The model section of a small model of 4 layers with these flags."""
    return config_of(f"{SIZES} {flags}", 1).model_config


def test_a_dense_model_reports_nothing():
    """A dense model adds no figures to the sum over ranks at a step's end."""
    assert figures_of(model()) == ()


def test_the_logged_loss_is_the_mean_over_layers_that_have_it():
    """The logged auxiliary losses are means over the layers with experts, micro-batches and replicas (`parts`); counts
    of tokens are not divided."""
    config = model("--num-experts 2 --moe-layer-freq [0,1,0,1] --moe-aux-loss-coeff 0.1 --moe-z-loss-coeff 0.1")
    figures = figures_of(config)
    values = {f.name: np.arange(np.prod(f.shape), dtype=float).reshape(f.shape) for f in figures}
    whole = from_vector(figures, to_vector(figures, values), parts=2)
    assert np.array_equal(whole["tokens_chosen"], values["tokens_chosen"])
    assert logged(config, whole) == {"load_balancing_loss": 6 / 2 / 2, "z_loss": 6 / 2 / 2}
    by_layer = logged_by_layer(config, whole)
    assert by_layer["moe/z_loss_layer_3"] == 1.5 and len(by_layer) == 2 * 4
    assert logged_by_layer(config, {}) == logged_by_layer(model(), whole) == {}


def test_layers_that_do_nothing_have_no_loss():
    """The mean leaves out layers of --noop-layers and counts multi-token prediction's layer, which is of the last
    layer's kind even if that one is idle."""
    config = model(
        "--num-experts 2 --moe-z-loss-coeff 0.1 --noop-layers 0,3 --mtp-num-layers 1 --position-embedding-type rope"
    )
    values = {figure.name: np.zeros(figure.shape) for figure in figures_of(config)}
    values["z_loss"] += [0, 2, 3, 0, 4]
    assert logged(config, values)["z_loss"] == 3
    by_layer = {name: value for name, value in logged_by_layer(config, values).items() if "z_loss" in name}
    assert list(by_layer.values()) == [0, 2, 3, 0, 4]


def test_megatron_divides_by_all_depths():
    """The mean is divided by the depths of multi-token prediction, too, even if those are dense, as recorded from
    Megatron-Core."""
    config = model(
        "--num-experts 2 --moe-layer-freq [1,1,0,0] --moe-z-loss-coeff 0.1 --mtp-num-layers 1 "
        "--position-embedding-type rope"
    )
    values = {figure.name: np.zeros(figure.shape) for figure in figures_of(config)}
    values["z_loss"] += [2, 4, 0, 0, 0]
    assert logged(config, values)["z_loss"] == 2
    by_layer = logged_by_layer(config, values)
    assert [by_layer[f"moe/z_loss_layer_{layer}"] for layer in range(5)] == [2, 4, 0, 0, 0]


def test_counts_that_are_sums_of_shares_are_whole():
    """A count that ranks sum up from their shares in float32 is rounded, not cut off."""
    shares = np.float32(7) / np.float32(6)
    counted = sum((shares for _ in range(6)), np.float32(0))
    values = {"tokens_chosen": np.array([[0.0, 0.0], [counted - np.float32(1e-6), 1.0]], np.float32)}
    assert tokens_by_expert(values) == {1: [7, 1]}
