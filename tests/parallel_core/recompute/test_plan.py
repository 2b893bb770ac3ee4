"""`RecomputePlan`: Megatron's flags and MindFormers' tables give the recomputed layers and modules that their documents
say."""

import re

import pytest

from parallel_core.blocks import layer_of
from parallel_core.config.recompute import RecomputeConfig
from parallel_core.recompute.parts import LayerParts
from parallel_core.recompute.plan import ChunkRecompute, RecomputePlan, wrong_settings
from tests.support.assets import asset
from tests.support.engine import TINY, config_of
from tests.support.families import FAMILIES

COUNTS = [[4, 5, 5, 5, 5], [5, 5, 5, 5, 4]]
NORMS, ACTIVATION, CORE = ("input_layernorm", "pre_mlp_layernorm"), ("mlp.activation",), "self_attention.core_attention"

UP_PROJECTIONS = "self_attention.up_projections"


def parts_of(family: str) -> LayerParts:
    """The module names of the first layer of a family's model."""
    return layer_of(config_of(f"{TINY} {FAMILIES[family]}", 1).model_config, 0).parts()


DENSE, EXPERTS, LATENT = parts_of("gpt"), parts_of("experts"), parts_of("latent attention")


def plan(counts=COUNTS, **settings) -> RecomputePlan:
    """The plan of these recompute settings for `counts` = layers by [chunk][stage]."""
    return RecomputePlan.of(RecomputeConfig(**settings), counts)


def in_chunk(plan: RecomputePlan, stage: int, chunk: int, there: LayerParts = DENSE) -> ChunkRecompute:
    """The plan of one chunk of a stage, all of whose layers have the parts `there`."""
    layers = range(plan.counts[chunk][stage])
    return plan.of_layers(plan.layer(stage, chunk, index, there) for index in layers)


def test_the_documented_example_is_logged_character_for_character():
    """MindFormers' documented settings give the log lines of its document, and lines for each layer of a chunk."""
    example = plan(
        recompute=[[2, 1, 0, 0, 0], [1, 0, 0, 0, 0]],
        select_recompute={
            r"feed_forward\.w1\.activation\.silu": True,
            r"feed_forward\.mul": True,
            r"feed_forward\.w1\.matmul": [[1, 0, 0, 0, 0], [2, 1, 0, 0, 0]],
            r"feed_forward\.w3\.matmul": [2, 1, 0, 0, 0],
        },
        select_comm_recompute=[r"ffn_norm\.norm", r"attention_norm\.norm"],
    )
    documented = re.findall(r"^INFO - (Formative .*)$", asset("documents/001.md").read_text(), re.MULTILINE)
    assert len(documented) == 3
    assert list(example.log_lines()) == documented
    layers = in_chunk(example, 0, 1).layers
    assert list(example.layer_lines(enumerate(layers, 24))) == ["Set full recompute at layer 24"] + [
        f"Set select recompute on at layer {n}: mlp.linear_fc1, mlp.activation" for n in (25,)
    ] + [f"Set select recompute on at layer {n}: mlp.activation" for n in (26, 27, 28)]


def test_nothing_asked_for_is_nothing():
    """No layer or module is recomputed without settings, and nothing is logged."""
    assert not any(layer.full or layer.modules for layer in in_chunk(plan(), 2, 1).layers)
    assert list(plan().log_lines()) == []


@pytest.mark.parametrize(
    ("settings", "full"),
    [
        ({"recompute_method": "uniform", "recompute_num_layers": 2}, COUNTS),
        ({"recompute_method": "block", "recompute_num_layers": 3}, [[3] * 5] * 2),
        ({"recompute_method": "block", "recompute_num_layers": 9}, COUNTS),
        (
            {
                "recompute_method": "block",
                "recompute_num_layers": 3,
                "enable_recompute_layers_per_pp_rank": True,
            },
            [[2] * 5, [1] * 5],
        ),
    ],
)
def test_whole_layers_by_flags(settings, full):
    """--recompute-granularity full with uniform or block gives the number of whole layers by [chunk][stage]."""
    assert plan(recompute_granularity="full", **settings).full == full


def test_uniform_layers_go_in_groups_of_a_chunk():
    """Uniform recompute of 2 layers groups a chunk's layers in twos, with the rest alone; block recompute runs each
    layer alone."""
    settings = plan(recompute_granularity="full", recompute_method="uniform", recompute_num_layers=2)
    assert in_chunk(settings, 0, 1).groups() == [range(0, 2), range(2, 4), range(4, 5)]
    block = plan(recompute_granularity="full", recompute_method="block", recompute_num_layers=2)
    assert in_chunk(block, 0, 0).groups() == [range(n, n + 1) for n in range(4)]


@pytest.mark.parametrize(
    ("settings", "modules"),
    [
        ({}, (CORE,)),
        ({"recompute_modules": ["layernorm", "core_attn"]}, ("input_layernorm", CORE, "pre_mlp_layernorm")),
        ({"recompute_modules": ["mlp"], "recompute_activation_function": True}, ("mlp",)),
    ],
)
def test_selected_modules(settings, modules):
    """--recompute-granularity selective gives core attention by default, else the modules that are named."""
    chosen = plan(recompute_granularity="selective", **settings)
    assert {layer.modules for layer in in_chunk(chosen, 3, 0).layers} == {modules}


def test_activations_are_counted_after_whole_layers():
    """MindSpeed's recompute of activation functions in n layers counts the layers behind those that are recomputed
    whole; norms are recomputed in all of them."""
    settings = plan(
        [[4]],
        recompute_granularity="full",
        recompute_method="block",
        recompute_num_layers=1,
        recompute_activation_function=True,
        recompute_activation_function_num_layers=2,
        recompute_norm=True,
    )
    layers = in_chunk(settings, 0, 0).layers
    assert [layer.full for layer in layers] == [True, False, False, False]
    both = ("input_layernorm", "pre_mlp_layernorm", "mlp.activation")
    assert [layer.modules for layer in layers] == [(), both, both, NORMS]


def test_up_projections_by_either_flag():
    """MindSpeed's --recompute-mla-up-proj equals Megatron's module mla_up_proj."""
    by_flag = plan(recompute_mla_up_proj=True)
    by_module = plan(recompute_granularity="selective", recompute_modules=["mla_up_proj"])
    layers = in_chunk(by_flag, 1, 1, LATENT).layers
    assert layers == in_chunk(by_module, 1, 1, LATENT).layers
    assert {layer.modules for layer in layers} == {(UP_PROJECTIONS,)}


def test_excluded_modules_are_kept():
    """select_recompute_exclude takes modules out in the first n layers of the selection."""
    settings = plan([[2]], select_recompute=["mlp.*", r".*\.core_attention"], select_recompute_exclude={"mlp": [1]})
    assert [layer.modules for layer in in_chunk(settings, 0, 0).layers] == [(CORE,), (CORE, "mlp")]


ALL_BUT_MLP = ("input_layernorm", "self_attention", "pre_mlp_layernorm")


@pytest.mark.parametrize(
    ("excluded", "modules"),
    [
        ("mlp", ALL_BUT_MLP),
        (r"feed_forward\.mul", ALL_BUT_MLP),
        (r"feed_forward\.w1\.matmul", (*ALL_BUT_MLP, "mlp.activation")),
        (r"self_attention\.core_attention", ("input_layernorm", "pre_mlp_layernorm", "mlp")),
    ],
)
def test_of_a_whole_layer_all_but_the_excluded_modules_are_computed_again(excluded, modules):
    """A whole layer with excluded modules becomes a selection of all others; here the first layer, while the second
    stays whole and the third is not recomputed."""
    settings = plan([[3]], recompute=[2], select_recompute_exclude={excluded: [1]})
    first, second, third = in_chunk(settings, 0, 0).layers
    assert not first.full and first.modules == modules
    assert second.full and not second.modules and not third.full and not third.modules


def test_up_projections_lie_in_the_attention():
    """A whole layer that keeps latent attention's up-projections recomputes only core attention within the attention;
    asking for both the attention and its up-projections means the attention."""
    asked = plan([[1]], recompute=[1], select_recompute_exclude=[r"latent\.up_projections"])
    (layer,) = in_chunk(asked, 0, 0, LATENT).layers
    assert not layer.full and layer.modules == ("input_layernorm", CORE, "pre_mlp_layernorm", "mlp")
    both = plan([[1]], select_recompute=["self_attention", r"latent\.up_projections"])
    assert in_chunk(both, 0, 0, LATENT).layers[0].modules == ("self_attention",)


def test_of_a_layer_only_what_it_has_is_named():
    """A selection names in each layer only modules that it has: mlp in a dense one, moe in one with experts."""
    asked = plan([[1]], select_recompute=["mlp", "moe", r"latent\.up_projections"])
    for there, modules in ((DENSE, ("mlp",)), (EXPERTS, ("moe",)), (LATENT, (UP_PROJECTIONS, "mlp"))):
        assert in_chunk(asked, 0, 0, there).layers[0].modules == modules


@pytest.mark.parametrize("pattern", ["moe", r"moe\.shared_experts", r"latent\.up_projections"])
def test_a_pattern_that_names_nothing_of_the_model_is_refused(pattern):
    """A pattern that matches no module of any layer is an error with the modules that there are; it is accepted if
    another kind of layer in the model has it."""
    flags = {name: f"--{name}" for name in vars(RecomputeConfig())}
    settings = RecomputeConfig(select_recompute=[pattern], select_recompute_exclude=[pattern])
    found = list(wrong_settings(settings, COUNTS, flags, DENSE))
    assert [finding.flag for finding in found] == ["--select_recompute", "--select_recompute_exclude"]
    for finding in found:
        assert finding.rule.endswith("pre_mlp_layernorm, mlp, mlp.linear_fc1, mlp.activation")
    assert not list(wrong_settings(settings, COUNTS, flags, LayerParts.of_all([DENSE, EXPERTS, LATENT])))


def test_collectives_are_kept_where_nothing_asks_for_them():
    """mp_comm_recompute false keeps the results of a recomputed layer's collectives, but for those that
    select_comm_recompute names; by default none are kept."""
    whole = {"recompute": [2]}
    assert in_chunk(plan([[2]], **whole), 0, 0).layers[0].kept_collectives == frozenset()
    kept = plan([[2]], mp_comm_recompute=False, select_comm_recompute={r"ffn_norm\.norm": [1]}, **whole)
    first, second = (layer.kept_collectives for layer in in_chunk(kept, 0, 0).layers)
    assert second - first == {"mlp.linear_fc1"}
    assert len(second) == 4


@pytest.mark.parametrize(
    ("pattern", "modules"),
    [
        (r"feed_forward\.mul", ACTIVATION),
        (r"feed_forward\.w[13]\.matmul", ("mlp.linear_fc1",)),
        (r".*\.norm", NORMS),
        (r"feed_forward", ("mlp",)),
        (r"feed_for", ()),
        (r"feed_forward.mul", ()),
        (r"mlp\.linear_.*", ("mlp.linear_fc1",)),
    ],
)
def test_patterns_match_whole_names(pattern, modules):
    """A pattern, in MindFormers' or our names, matches modules by their whole names; an unescaped full stop in
    MindFormers' matches none."""
    assert DENSE.matching(pattern) == {*modules}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"recompute": [1, 2]}, "must be true, false, a list of 5 stages' layers, or for 2 chunks"),
        ({"select_recompute": ["feed_forwrad"]}, "matches no module; those of a layer are input_layernorm, self_att"),
        ({"select_recompute": ["feed_forward.mul"]}, "names are separated by an escaped full stop"),
        ({"select_recompute": {"(": True}}, "is no regular expression"),
        ({"select_recompute": {"a{99999999999999999999}": True}}, "is no regular expression"),
        (
            {"select_comm_recompute": ["mlp"]},
            "matches no module; those of a layer are input_layernorm, pre_mlp_layernorm",
        ),
        ({"select_recompute": 3}, "must be true, false"),
        ({"select_recompute_exclude": {"mlp": [[1]]}}, "must be true, false"),
    ],
)
def test_wrong_settings_are_named(settings, says):
    """A wrong recompute setting is one finding with its flag and rule."""
    flags = {name: f"--{name}" for name in vars(RecomputeConfig())}
    (finding,) = wrong_settings(RecomputeConfig(**settings), COUNTS, flags, DENSE)
    assert finding.flag == f"--{next(iter(settings))}"
    assert says in finding.rule
