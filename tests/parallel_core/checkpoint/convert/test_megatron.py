"""Megatron's checkpoints: order and names of parameters, how each is cut over ranks, and its args as our settings."""

import tarfile

import numpy as np
import pytest

from parallel_core.blocks import model_chunks
from parallel_core.checkpoint.convert import formats
from parallel_core.checkpoint.convert.megatron.args import arguments_of, settings_of
from parallel_core.checkpoint.convert.megatron.names import in_order, spellings
from parallel_core.checkpoint.convert.megatron.shards import Cuts, RankFile
from parallel_core.checkpoint.convert.megatron.torch_dist import _by_parameter
from parallel_core.checkpoint.convert.megatron.write import Layout, write_legacy
from parallel_core.checkpoint.convert.model import Model
from parallel_core.checkpoint.lazy import LazyTensor, assembled, of_array
from parallel_core.checkpoint.networks import differences
from parallel_core.checkpoint.torch_files.archive import read_archive
from parallel_core.config.serialise import config_of as whole_config
from parallel_core.config.serialise import model_of, put
from parallel_core.sharding import Box
from tests.support.assets import asset
from tests.support.checkpoint_cases import CASES, digests, unpack
from tests.support.engine import TINY, config_of
from tests.support.families import FAMILIES

GATED = "--swiglu --normalization RMSNorm --disable-bias-linear --add-qkv-bias --untie-embeddings-and-output-weights"
FLAGS = {
    "gpt": "",
    "sinks": f"{GATED} --position-embedding-type rope --qk-layernorm --softmax-type learnable",
    "llama": f"{GATED} --position-embedding-type rope --group-query-attention --num-query-groups 2 --qk-layernorm",
    "sandwich": "--use-sandwich-norm",
    "latent attention": f"{GATED} {FAMILIES['latent attention, compressed queries']}",
    "two tokens further": f"{GATED} --position-embedding-type rope --mtp-num-layers 2",
    "sparse attention": f"{GATED} {FAMILIES['sparse attention']}",
    "gated delta net": FAMILIES["gated delta net"],
    "stack": f"{GATED} --hybrid-override-pattern M*-E --num-layers 4 --num-experts 4 --moe-ffn-hidden-size 16 "
    "--position-embedding-type none --mamba-head-dim 8 --mamba-num-heads 8 --mamba-state-dim 6 --mamba-num-groups 4",
}


IN_MEGATRON = [name for name in FLAGS if name != "sandwich"]


def drawn(family: str) -> Model:
    """A model of the family with random weights that are multiples of 2^-12, so that subtracting 1 and adding it again
    is exact."""
    config = config_of(f"{TINY} {FLAGS[family]}", 1)
    numbers = np.random.default_rng(3)
    (chunk,) = model_chunks(config.model_config)
    shapes = {name: spec.shard.shape for name, spec in chunk.parameters().items()}
    weights = {
        name: of_array(numbers.integers(0, 4096, shape).astype(np.float32) / 4096) for name, shape in shapes.items()
    }
    return Model(weights, model_of(config.to_dict()))


@pytest.mark.parametrize("family", IN_MEGATRON)
def test_every_family_is_cut_and_put_together(family, tmp_path):
    """A model written as Megatron's files of two tensor-parallel ranks and read again has the same tensors, indexers
    and multi-token prediction included."""
    model = drawn(family)
    write_legacy(model, tmp_path, Layout(tensor=2), 8)
    found = formats.read(tmp_path)
    assert digests(found.weights) == digests(model.with_rows(found.vocab_size).weights)


@pytest.mark.parametrize(
    ("family", "path", "value"),
    [
        ("gpt", "use_sandwich_norm", True),
        ("gpt", "apply_residual_connection_post_norm", True),
        ("llama", "scales.logit_cap", 30.0),
        ("llama", "rope_scaling", {"type": "llama3", "original_max_position_embeddings": 16}),
        ("llama", "rope_scaling", {"type": "dynamic"}),
        ("two tokens further", "multi_token_prediction.share_embedding_and_output_weight", False),
    ],
)
def test_what_no_network_of_megatrons_has_is_refused(family, path, value, tmp_path):
    """A setting that no network of Megatron's has is refused by name when its files are written: Megatron would compute
    something else."""
    model = drawn(family)
    put(model.network, path, value)
    with pytest.raises(ValueError, match=path.replace("rope_scaling", "rope.scaling")):
        write_legacy(model, tmp_path, Layout())


@pytest.mark.parametrize("family", FLAGS)
def test_every_parameter_of_a_model_has_its_blocks_cut(family):
    """`Cuts` gives each parameter the cut that its block describes, with the shape in the files, as a padded vocabulary
    needs."""
    model = drawn(family)
    cuts = Cuts(model.settings, model.weights)
    specs = {name: cuts.of(name, tensor.shape) for name, tensor in model.weights.items()}
    assert len(specs) >= 20
    assert {name: spec.shape for name, spec in specs.items()} == {n: t.shape for n, t in model.weights.items()}
    assert {axis for spec in specs.values() for axis in ([cut.axis for cut in spec.cuts] or [None])} == {None, 0, 1}


OTHERWISE = {"before", "gemm"}
"""Parts of the names of cases left out: models from before Megatron-Core, and experts that are one parameter."""


@pytest.mark.parametrize("case", [case for case in CASES if "legacy" in case and not OTHERWISE & {*case.split("_")}])
def test_the_order_of_parameters_is_megatrons(case, tmp_path):
    """`in_order` gives the order in the dictionaries that Megatron saved, by which the optimizer's states are
    numbered."""
    for path in unpack(case, tmp_path).rglob("model_optim_rng.pt"):
        for chunk in RankFile(path, read_archive(path), 0, 0, 0).chunks:
            assert list(chunk) == in_order(reversed(chunk))


def test_the_local_implementation_cuts_down_projections():
    """Latent attention's down-projections have half of their rows in each of two files of Megatron's local
    implementation, and all rows in Transformer Engine's."""
    name = "decoder.layers.0.self_attention.linear_kv_down_proj.weight"
    model = drawn("latent attention")
    cuts = Cuts(model.settings, model.weights)
    shapes = [cuts.whole_shape(name, (20, 64), {"tp": 2}, local) for local in (True, False)]
    assert shapes == [(40, 64), (20, 64)]


def test_a_name_that_nobody_knows_is_refused():
    """A parameter that no block of the model has is refused by name: how it is cut would be a guess."""
    with pytest.raises(ValueError, match=r"decoder\.layers\.0\.mamba\.in_proj"):
        Cuts(drawn("gpt").settings, drawn("gpt").weights).of("decoder.layers.0.mamba.in_proj", (4, 4))


@pytest.mark.parametrize(("given", "factor"), [("yarn", 40.0), (None, 40.0), (None, 1.0), ("rope", 40.0)])
def test_positions_of_latent_attention_are_stretched(given, factor):
    """Latent attention's args without rope_type mean yarn, with a length before stretching of 4096; a factor of 1 is
    the same network as no stretching, and settings survive writing and reading."""
    ours = config_of(f"{TINY} {FLAGS['latent attention']} --max-position-embeddings 640", 1)
    args = arguments_of(ours) | {
        "rope_type": given,
        "rotary_scaling_factor": factor,
        "mscale": 0.7,
        "mscale_all_dim": 0.7,
    }
    args["original_max_position_embeddings"] = None
    network = settings_of(args)["model_config"]
    assert network.get("rope_scaling", {}).get("type") == (None if given == "rope" else "yarn")
    whole = whole_config({"model_config": network})
    again = whole_config({"model_config": settings_of(arguments_of(whole))["model_config"]})
    assert differences(whole, again) == []
    (name, length) = ("model_config.rope_scaling.type", "original_max_position_embeddings")
    assert (getattr(whole.model_config.rope_scaling, length) == 4096) == (given != "rope")
    plain = settings_of(args | {"rope_type": "rope"})["model_config"]
    found = differences(whole, whole_config({"model_config": plain}))
    assert (name in [path for path, *_ in found]) == (given != "rope" and factor != 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [("moe_latent_size", 8), ("no_rope_freq", [0, 1]), ("qk_l2_norm", True)],
)
def test_a_network_that_no_setting_says_is_refused(name, value):
    """An arg for a network that we do not have is refused with its name, unless it is at its neutral value: shapes of
    weights do not show it."""
    assert settings_of({"num_layers": 2, "moe_latent_size": None, "qk_l2_norm": False})
    with pytest.raises(ValueError, match=f"its args have {name} "):
        settings_of({"num_layers": 2, name: value})


@pytest.mark.parametrize("family", FLAGS)
def test_args_say_the_same_network(family):
    """Our settings written as Megatron's args and read again are the same network."""
    config = config_of(f"{TINY} {FLAGS[family].replace('--use-sandwich-norm', '')}", 1)
    ours, back = config.to_dict(), settings_of(arguments_of(config))
    assert differences(config, whole_config(back)) == []
    network = back["model_config"]
    asked = (
        "num_layers",
        "hidden_size",
        "num_query_groups",
        "ffn_hidden_size",
        "normalization",
        "rotary_base",
        "hidden_act",
    )
    expected = {name: ours["model_config"][name] for name in asked}
    if not ours["model_config"]["group_query_attention"]:
        expected.pop("num_query_groups")
    assert {name: network[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("layers.3.attention.query_key_value.weight", "layers.3.self_attention.linear_qkv.weight"),
        ("layers.3.self_attention.qkv_proj.weight", "layers.3.self_attention.linear_qkv.weight"),
        ("layers.3.self_attention.out_proj.bias", "layers.3.self_attention.linear_proj.bias"),
        ("layers.3.mlp.mapping.weight", "layers.3.mlp.linear_fc1.weight"),
        ("layers.3.mlp.projection.bias", "layers.3.mlp.linear_fc2.bias"),
        ("layers.3.mlp.dense_4h_to_h.weight", "layers.3.mlp.linear_fc2.weight"),
        ("layers.3.post_attention_layernorm.weight", "layers.3.pre_mlp_layernorm.weight"),
    ],
)
def test_old_names(theirs, ours):
    """Parameter names of Megatron-LM before Megatron-Core, and of MindSpeed-Core-MS, are read as today's."""
    names = [f"language_model.transformer.{theirs}", "language_model.transformer.layers.0.mlp.mapping.weight"]
    assert spellings(names)[names[0]] == f"decoder.{ours}"


def test_a_norm_after_attention_keeps_its_name_in_models_of_today():
    """post_attention_layernorm, which before Megatron-Core was the norm before the feed-forward block, stays the
    sandwich norm's name in files of today."""
    names = ["decoder.layers.0.post_attention_layernorm.weight", "decoder.layers.0.mlp.linear_fc1.weight"]
    assert spellings(names) == dict(zip(names, names, strict=True))


def test_args_of_gpt_oss_say_sinks_and_limits():
    """gpt-oss's args (softmax_type, quick_geglu, glu_linear_offset, activation_func_clamp_value) are read as our
    settings and written from them."""
    entries = {"softmax_type": "learnable", "quick_geglu": True, "glu_linear_offset": 1.0}
    entries["activation_func_clamp_value"] = 7.0
    network = settings_of({"num_layers": 2, **entries})["model_config"]
    assert network["hidden_act"] == "quick_geglu"
    assert {name: network[name] for name in entries if name != "quick_geglu"} | {"quick_geglu": True} == entries
    written = arguments_of(config_of(f"{TINY} --softmax-type learnable --quick-geglu --glu-linear-offset 1", 1))
    assert (written["softmax_type"], written["quick_geglu"], written["glu_linear_offset"]) == ("learnable", True, 1)


@pytest.mark.parametrize(
    "flags",
    [
        "--qk-layernorm --qk-norm-type per_layer --normalization RMSNorm",
        "--no-pre-norm --use-sandwich-norm",
        "--num-experts 4 --num-zero-experts 2 --moe-router-pre-softmax",
        "--num-experts 4 --moe-shortcut-connected",
    ],
)
def test_networks_that_megatron_does_not_have_are_not_written(flags):
    """Flags for which Megatron's args have no entry make writing them an error: it would load another network."""
    with pytest.raises(ValueError, match="no network of Megatron-Core's has"):
        arguments_of(config_of(f"{TINY} {flags}", 1))


OF_ENGINE = {
    "stack": {
        "decoder.layers.0.mixer.in_proj.layer_norm_weight", "decoder.layers.0.mixer.conv1d.bias",
        "decoder.layers.1.self_attention.linear_qkv.layer_norm_weight", "decoder.final_norm.weight",
        "decoder.layers.2.mlp.linear_fc1.layer_norm_weight", "decoder.layers.3.pre_mlp_layernorm.weight",
        "decoder.layers.3.mlp.experts.linear_fc1.weight3",
    },
    "gated delta net": {
        "decoder.layers.0.self_attention.in_proj.layer_norm_weight", "decoder.layers.0.self_attention.out_norm.weight",
        "decoder.layers.1.self_attention.linear_qkv.layer_norm_weight", "decoder.final_layernorm.weight",
        "decoder.layers.1.mlp.linear_fc1.layer_norm_weight",
    },
}  # fmt: skip
"""Some names in Megatron-Core 0.16.1's models that it builds of Transformer Engine's layers alone, by family."""


@pytest.mark.parametrize("family", OF_ENGINE)
def test_models_of_transformer_engine_are_written_in_its_names(family, tmp_path):
    """Models that Megatron-Core builds of Transformer Engine's layers alone are written under those names, in which a
    norm belongs to the linear behind it."""
    write_legacy(drawn(family), tmp_path, Layout(), 8)
    (path,) = tmp_path.rglob("model_optim_rng.pt")
    written = read_archive(path)["model"]
    assert not OF_ENGINE[family] - written.keys()
    assert not [
        name for name in written if "input_layernorm" in name or ".norm.weight" in name.replace("mixer.norm", "")
    ]


def test_parts_of_mixers_are_put_together():
    """torch_dist's separate tensors of a mixer's input projection (z, x, B, C, dt) are joined in this order into one
    parameter."""
    name, sizes = "decoder.layers.0.mixer.in_proj.weight", {"z": 3, "x": 3, "B": 2, "C": 2, "dt": 1}
    whole = np.arange(11, dtype=np.float32)
    ends = np.cumsum([*sizes.values()])
    parts = {
        f"{name}.{part}": assembled((size,), "float32", [(Box.alone((0,), (size,)), of_array(whole[end - size : end]))])
        for (part, size), end in zip(sizes.items(), ends, strict=True)
    }
    found = dict(_by_parameter(dict(sorted(parts.items()))))
    np.testing.assert_array_equal(found[name].read(), whole)


@pytest.mark.parametrize("case", ["gated_delta_net", "stack"])
def test_files_of_two_ranks_are_written_as_megatron_wrote_them(case, tmp_path):
    """Megatron's recorded files of a gated delta net and of a hybrid stack, read and written for two tensor-parallel
    ranks: the same names in the same order, and every bit."""
    with tarfile.open(asset("mixers.tar.xz")) as archive:
        archive.extractall(tmp_path, filter="data")
    write_legacy(formats.read(tmp_path / case), tmp_path / "again", Layout(tensor=2), 32)
    for rank in ("mp_rank_00", "mp_rank_01"):
        theirs, ours = (
            read_archive(next((tmp_path / folder).rglob(f"{rank}/model_optim_rng.pt")))["model"]
            for folder in (case, "again")
        )
        expected = {name: tensor.read() for name, tensor in theirs.items() if isinstance(tensor, LazyTensor)}
        assert list(ours) == list(expected)
        for name, array in expected.items():
            np.testing.assert_array_equal(ours[name].read(), array, err_msg=name)
