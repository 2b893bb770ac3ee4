"""The log lines about recompute name the modules that each layer has."""

from parallel_core.blocks import recompute_lines
from tests.parallel_core.blocks.test_kept_bytes import SIZES
from tests.support.engine import config_of

EXPERTS = "--num-experts 4 --moe-layer-freq [0,1,0,1] --moe-router-load-balancing-type none"


def of_layers(flags: str) -> list[str]:
    """The log's lines about layers that are recomputed, without those about the tables by stage."""
    lines = recompute_lines(config_of(f"{SIZES} {flags}", 1).model_config)
    return [line for line in lines if not line.startswith("Formative")]


def test_each_layer_by_its_kind():
    """A dense layer's line names mlp and an expert layer's line moe where both are asked for."""
    assert of_layers(f"{EXPERTS} --select-recompute ['mlp','moe']") == [
        f"Set select recompute on at layer {n}: {module}" for n, module in enumerate(("mlp", "moe", "mlp", "moe"))
    ]


def test_the_rest_of_a_dense_layer_has_no_experts():
    """A dense layer whose attention is excluded from full recompute names its norms and mlp, and no experts."""
    assert of_layers(r"--recompute [2] --select-recompute-exclude {'self_attention':[1]}") == [
        "Set select recompute on at layer 0: input_layernorm, pre_mlp_layernorm, mlp",
        "Set full recompute at layer 1",
    ]


def test_layers_that_only_take_up_a_number_are_not_named():
    """Layers of --noop-layers have no line."""
    assert of_layers("--recompute True --noop-layers 1,3") == [f"Set full recompute at layer {n}" for n in (0, 2)]


def test_depths_of_multi_token_prediction_have_the_numbers_behind_the_layers():
    """A depth of multi-token prediction is named with the number that follows the last layer's."""
    lines = of_layers("--recompute True --mtp-num-layers 1 --position-embedding-type rope")
    assert lines == [f"Set full recompute at layer {n}" for n in range(5)]
