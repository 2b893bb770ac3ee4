"""HuggingFace's config.json: its keys become our settings and are written from them."""

import json

import numpy as np
import pytest

from parallel_core.attention.fused_rows import QueryKeyValueRows
from parallel_core.attention.rotary import yarn_magnitude
from parallel_core.checkpoint.convert.huggingface.config import (
    UNKNOWN,
    config_of,
    family_of,
    left_out,
    matching_family,
    settings_of,
    with_vocabulary,
)
from parallel_core.checkpoint.convert.huggingface.rules import INDEXER, IndexerRows, Rows
from parallel_core.checkpoint.convert.megatron.args import arguments_of
from parallel_core.checkpoint.lazy import of_array
from parallel_core.checkpoint.networks import differences
from parallel_core.config.serialise import config_of as whole_config
from parallel_core.config.serialise import get
from tests.support.assets import asset

PUBLISHED = json.loads(asset("published_models.json").read_text(encoding="utf-8"))
"""config.json of widely used models, by name."""
LLAMA = {
    "vocab_size": 100, "num_hidden_layers": 4, "hidden_size": 32, "intermediate_size": 40, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "rope_theta": 10000.0,
}  # fmt: skip
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16, "num_local_experts": 4, "norm_topk_prob": True}
DEEPSEEK = {
    "n_routed_experts": 8, "num_experts_per_tok": 4, "moe_intermediate_size": 16, "kv_lora_rank": 8, "v_head_dim": 8,
    "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "routed_scaling_factor": 1.0, "n_group": 1,
}  # fmt: skip
GPT2 = {"n_layer": 2, "n_embd": 32, "n_head": 4, "n_positions": 16}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}


def read(model_type: str, **keys: object) -> dict:
    """Our settings from LLaMA's config.json with another model type and other keys."""
    config = {**LLAMA, "model_type": model_type, **keys}
    return settings_of(config, family_of(config))


def written(ours: dict, model_type: str | None) -> dict:
    """The config.json written for a model with these settings; without a model type that of the family that matches."""
    full = whole_config(with_vocabulary(ours))
    return config_of(full, matching_family(full, model_type))


@pytest.mark.parametrize(
    ("model_type", "keys", "size", "layers"),
    [
        ("mistral", {"sliding_window": 5}, 4, None),
        ("mistral", {"sliding_window": None}, None, None),
        ("mistral", {}, 4095, None),
        ("mixtral", {**EXPERTS}, None, None),
        ("qwen2", {"sliding_window": 5, "max_window_layers": 0}, None, None),
        ("qwen2", {"sliding_window": 5, "use_sliding_window": True, "max_window_layers": 3}, 4, [0, 0, 0, 1]),
        ("qwen2", {"sliding_window": 5, "use_sliding_window": True, "max_window_layers": 4}, None, None),
        (
            "qwen3",
            {
                "sliding_window": 5,
                "use_sliding_window": True,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
            },
            4,
            [1, 0, 1, 0],
        ),
        ("qwen3_moe", {**EXPERTS, "sliding_window": 5, "use_sliding_window": True}, 4, None),
        (
            "qwen2_moe",
            {
                **EXPERTS,
                "shared_expert_intermediate_size": 24,
                "sliding_window": 5,
                "use_sliding_window": True,
                "max_window_layers": 2,
            },
            4,
            [1, 0, 0, 0],
        ),
    ],
)
def test_windows(model_type, keys, size, layers):
    """A sliding window is one smaller in our settings, since HuggingFace's counts the query's own token; the layers
    that have it are read from each family's keys, and the window survives writing and reading."""
    ours = read(model_type, **keys)
    window = get(ours, "model_config.sliding_window", {})
    assert (window.get("size"), window.get("skip_freq")) == (size, layers)
    again = written(ours, model_type)
    assert get(settings_of(again, family_of(again)), "model_config.sliding_window", {}) == window


def test_number_of_experts_in_both_spellings():
    """num_local_experts (written by transformers 5) is read, and num_experts, which transformers 4 and 5 read, is
    written."""
    assert get(read("qwen3_moe", **EXPERTS), "moe_config.num_experts") == 4
    assert written(read("qwen3_moe", **EXPERTS), "qwen3_moe")["num_experts"] == 4


def test_layers_with_experts_by_a_number_and_by_a_list():
    """--moe-layer-freq 2 (experts in every second layer from the first) is written as the list of layers without
    experts."""
    ours = read("qwen2_moe", **EXPERTS, shared_expert_intermediate_size=24)
    ours["moe_config"]["moe_layer_freq"] = 2
    assert written(ours, "qwen2_moe")["mlp_only_layers"] == [1, 3]


def test_scores_over_all_experts_divided_by_their_sum():
    """--moe-router-pre-softmax with --norm-topk-prob, which equals a softmax over the chosen experts, is written as
    norm_topk_prob true."""
    ours = read("qwen3_moe", **EXPERTS)
    ours["moe_config"] |= {"moe_router_pre_softmax": True, "moe_router_norm_topk_prob": True}
    assert written(ours, "qwen3_moe")["norm_topk_prob"] is True


def test_groups_of_experts_count_only_where_the_method_limits_them():
    """n_group in DeepSeek-V2's config.json counts with topk_method group_limited_greedy and is passed over with
    greedy."""
    groups = {**DEEPSEEK, "n_group": 4, "topk_group": 2}
    assert "moe_router_num_groups" not in read("deepseek_v2", **groups, topk_method="greedy")["moe_config"]
    ours = read("deepseek_v2", **groups, topk_method="group_limited_greedy")
    assert ours["moe_config"]["moe_router_group_topk"] == 2
    assert written(ours, "deepseek_v2")["topk_method"] == "group_limited_greedy"


@pytest.mark.parametrize(
    ("family", "chosen", "counted"), [("v2", 2, None), ("v2", 4, 1), ("v3", 4, None), ("v3", 6, 2)]
)
def test_a_group_is_judged_by_its_best_or_by_its_best_two(family, chosen, counted):
    """A group of experts is scored by its best expert in DeepSeek-V2 and its best two in DeepSeek-V3, whatever k is;
    where that differs from Megatron's k / topk_group, the setting says so, and writing Megatron's args or another
    number for HuggingFace is an error."""
    groups = {"n_group": 4, "topk_group": 2, "num_experts_per_tok": chosen, "n_routed_experts": 16}
    method = {"topk_method": "group_limited_greedy"} if family == "v2" else {}
    ours = read(f"deepseek_{family}", **{**DEEPSEEK, **groups, **method})
    assert ours["moe_config"].get("moe_router_group_score_topk") == counted
    assert written(ours, f"deepseek_{family}")["topk_group"] == 2
    full = whole_config(with_vocabulary(ours))
    if counted is None:
        assert arguments_of(full)["moe_router_group_topk"] == 2
        return
    with pytest.raises(ValueError, match=f"--moe-router-group-score-topk {counted}"):
        arguments_of(full)
    with pytest.raises(ValueError, match=r"cannot say moe_config\.moe_router_group_score_topk"):
        written({**ours, "moe_config": {**ours["moe_config"], "moe_router_group_score_topk": 4}}, f"deepseek_{family}")


@pytest.mark.parametrize(("of_others", "own"), [(1e-6, None), (1e-5, 1e-6)])
def test_norms_of_latents_have_their_own_epsilon(of_others, own):
    """Norms of latents have epsilon 1e-6, as transformers' class has whatever rms_norm_eps says; where other norms have
    another one, Megatron's args, which have one for all, cannot be written, nor config.json without it."""
    ours = read("deepseek_v3", **DEEPSEEK, rms_norm_eps=of_others)
    assert get(ours, "model_config.multi_latent_attention.latent_norm_epsilon") == own
    assert written(ours, "deepseek_v3")["rms_norm_eps"] == of_others
    if own is not None:
        with pytest.raises(ValueError, match="--latent-norm-epsilon 1e-06"):
            arguments_of(whole_config(with_vocabulary(ours)))
        del ours["model_config"]["multi_latent_attention"]["latent_norm_epsilon"]
        with pytest.raises(ValueError, match="latent_norm_epsilon"):
            written(ours, "deepseek_v3")


def test_every_head_of_latent_attention_has_its_own_keys():
    """num_key_value_heads is written as the number of heads for latent attention, since transformers' default for the
    key is another one."""
    ours = read("deepseek_v2", **DEEPSEEK)
    assert written(ours, "deepseek_v2")["num_key_value_heads"] == 4


def test_all_linears_with_a_bias():
    """add_bias_linear is true only if LLaMA's attention_bias and mlp_bias are both true."""
    assert read("llama", attention_bias=True, mlp_bias=True)["model_config"]["add_bias_linear"] is True
    assert read("llama", attention_bias=True)["model_config"]["add_bias_linear"] is False


def test_the_kind_of_stretching_can_stand_there_twice():
    """rope_scaling with `type` alone and with `rope_type` beside it, as transformers 4 writes it, gives the same
    settings."""
    once, twice = (read("llama", rope_scaling=scaling) for scaling in (YARN, {**YARN, "rope_type": "yarn"}))
    assert once == twice


def test_lengths_before_stretching_default_to_the_model_s():
    """LLaMA 3's scaling without original_max_position_embeddings takes the model's max_position_embeddings, as
    transformers 5 does, and not Megatron's 8192."""
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    ours = read("llama", rope_scaling=scaling)
    assert get(ours, "model_config.rope_scaling.original_max_position_embeddings") == LLAMA["max_position_embeddings"]


@pytest.mark.parametrize(("latent", "length"), [(False, 8192), (True, 4096)])
def test_what_megatron_stretches_by_default_is_written(latent, length):
    """Megatron's default length before stretching, and the factor of latent attention, are written out in config.json:
    transformers would take max_position_embeddings for the length."""
    ours = read("deepseek_v2", **DEEPSEEK) if latent else read("llama")
    ours["model_config"]["rope_scaling"] = {"type": "yarn" if latent else "llama3"}
    if latent:
        ours["model_config"]["multi_latent_attention"]["rotary_scaling_factor"] = 40.0
    scaling = written(ours, None)["rope_parameters"]
    assert (scaling["original_max_position_embeddings"], scaling["factor"]) == (length, 40.0 if latent else 8.0)


@pytest.mark.parametrize("kind", ["yarn", "dynamic"])
def test_another_factor_is_another_network(kind):
    """Models that differ in the factor of yarn or of dynamic scaling alone are compared as different networks, by that
    setting."""
    ours = [whole_config(with_vocabulary(read("llama", rope_scaling={"type": kind, "factor": f}))) for f in (2.0, 4.0)]
    assert [path for path, *_ in differences(*ours)] == ["model_config.rope_scaling.factor"]


def test_yarn_without_its_magnitudes():
    """Yarn's mscale and mscale_all_dim are not written if neither was given, since transformers treats one alone
    otherwise."""
    again = written(read("llama", rope_scaling=YARN), "llama")["rope_scaling"]
    assert again["factor"] == 4.0 and not {"mscale", "mscale_all_dim"} & again.keys()


def test_dropout_is_taken_over():
    """Dropout rates are read from, and written under, the family's own keys; missing keys have transformers'
    defaults."""
    names = ("attention_dropout_rate", "hidden_dropout_rate")
    for model_type, keys, rates in (
        ("llama", {}, [0.0, 0.0]),
        ("qwen2", {"attention_dropout": 0.2}, [0.2, 0.0]),
        ("gpt2", GPT2, [0.1, 0.1]),
        ("gpt2", {**GPT2, "attn_pdrop": 0.0, "resid_pdrop": 0.3}, [0.0, 0.3]),
    ):
        ours = read(model_type, **keys)
        assert [ours["model_config"][name] for name in names] == rates
        again = written(ours, model_type)
        read_again = settings_of(again, family_of(again))["model_config"]
        assert [read_again[name] for name in names] == rates
    assert again["embd_pdrop"] == again["resid_pdrop"] == 0.3


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_key_of_a_published_model_is_taken_over_or_left_out_for_a_reason(name):
    """No key of a published config.json is unknown, and a model can be built of the settings read."""
    config = PUBLISHED[name]
    family = family_of(config)
    assert UNKNOWN not in left_out(config, family)
    assert whole_config(with_vocabulary(settings_of(config, family))).model_config.num_layers > 0


def test_a_key_that_nobody_knows_is_told():
    """`left_out` lists a key that transformers' class does not have as unknown (a user's own class may read it), and a
    known one without effect here under its reason."""
    config = {**LLAMA, "model_type": "llama", "residual_multiplier": 0.2, "use_cache": True}
    told = left_out(config, family_of(config))
    assert told[UNKNOWN] == ["residual_multiplier"] and told["generation"] == ["use_cache"]


def test_what_a_family_maps_is_not_left_out():
    """head_dim is listed as left out for deepseek_v3, where it says nothing, and not for llama, which maps it."""
    for model_type, is_left_out in (("llama", False), ("deepseek_v3", True)):
        config = {"model_type": model_type, "head_dim": 8}
        assert bool(left_out(config, family_of(config))) == is_left_out


@pytest.mark.parametrize(
    ("model_type", "keys", "words"),
    [
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        (
            "llama",
            {"rope_scaling": {**YARN, "attention_factor": 2.0, "mscale": 1.0, "mscale_all_dim": 1.0}},
            "attention_factor",
        ),
        ("llama", {"rope_scaling": {**YARN, "mscale_all_dim": 0.7}}, "mscale_all_dim"),
        ("llama", {"rope_scaling": {**YARN, "mscale": 0.7}}, "mscale"),
        ("llama", {"rope_scaling": {"type": "longrope", "factor": 2.0}}, "longrope"),
        ("qwen3", {"use_sliding_window": True, "layer_types": ["chunked_attention"] * 4}, "chunked_attention"),
        ("qwen2", {"layer_types": ["sliding_attention"] * 4}, "use_sliding_window is false"),
        ("qwen2", {"use_sliding_window": True, "layer_types": ["full_attention"] * 3}, "layer_types has 3 entries"),
        ("deepseek_v2", {**DEEPSEEK, "mlp_bias": True}, "mlp_bias True"),
        ("deepseek_v3", {**DEEPSEEK, "n_group": 4, "topk_group": 0}, "topk_group 0"),
        ("deepseek_v3", {**DEEPSEEK, "n_group": None}, "n_group is missing"),
        ("deepseek_v3", {**DEEPSEEK, "routed_scaling_factor": None}, "routed_scaling_factor is missing"),
        ("deepseek_v3", {**DEEPSEEK, "norm_topk_prob": False}, "norm_topk_prob False"),
        ("deepseek_v3", {**DEEPSEEK, "scoring_func": "softmax"}, "scoring_func 'softmax'"),
    ],
)
def test_what_would_be_computed_otherwise_is_refused(model_type, keys, words):
    """A key whose value makes a network that we do not compute is refused by name and value: shapes of weights would
    not show it."""
    with pytest.raises(ValueError, match=words):
        read(model_type, **keys)


ALPHA = {"rope_type": "dynamic", "alpha": 1000.0, "rope_theta": 1e4}


def test_hunyuans_alpha_stretches_the_base_alone():
    """Hunyuan's rope alpha becomes rotary_base x alpha^(d/(d-2)), d = 16 the head size, as in transformers, and is
    written as that base; its head norms come after the rotation."""
    ours = read("hunyuan_v1_dense", rope_parameters=ALPHA, head_dim=16)
    assert ours["model_config"]["rotary_base"] == pytest.approx(1e4 * 1000 ** (16 / 14))
    assert ours["model_config"]["qk_norm_after_rotary"] is True
    theirs = written(ours, "hunyuan_v1_dense")["rope_parameters"]
    assert theirs == {"rope_type": "default", "rope_theta": pytest.approx(1e4 * 1000 ** (16 / 14))}
    assert read("hunyuan_v1_dense", rope_theta=5e5)["model_config"]["rotary_base"] == 5e5


def test_hunyuans_experts_are_as_wide_as_the_one_that_all_tokens_have():
    """Hunyuan's experts and shared expert have intermediate_size features; moe_topk may be a list of equal numbers,
    other lists are refused, and so is 1, with which an expert weighs 1 whatever its router says."""
    ours = read("hunyuan_v1_moe", num_experts=4, moe_topk=[2, 2, 2, 2], rope_theta=1e4)
    moe = ours["moe_config"]
    assert moe["moe_ffn_hidden_size"] == moe["moe_shared_expert_intermediate_size"] == LLAMA["intermediate_size"]
    theirs = written(ours, "hunyuan_v1_moe")
    assert (theirs["moe_topk"], theirs["num_experts"]) == (2, 4)
    assert theirs["intermediate_size"] == LLAMA["intermediate_size"]
    for keys, words in (({"moe_topk": 1}, "weighs 1"), ({"moe_topk": [2, 3]}, "other numbers of experts")):
        with pytest.raises(ValueError, match=words):
            read("hunyuan_v1_moe", num_experts=4, rope_theta=1e4, **keys)


def test_layers_of_olmo_3_with_a_window_have_positions_that_nothing_stretches():
    """OLMo-3's layers with a window have plain rotary positions and the others yarn's with attention_factor; both
    spellings of the keys give these settings, which are written by kind of layer."""
    stretched = {**YARN, "attention_factor": 1.2}
    kinds = ["sliding_attention"] * 3 + ["full_attention"]
    older = read("olmo3", rope_scaling=stretched, rope_theta=5e5, sliding_window=8, layer_types=kinds)
    window, scaling = older["model_config"]["sliding_window"], older["model_config"]["rope_scaling"]
    assert window == {"size": 7, "skip_freq": [1, 1, 1, 0], "local_rotary_base": 5e5}
    assert yarn_magnitude(YARN["factor"], scaling["mscale"]) == pytest.approx(1.2)
    by_kind = written(older, "olmo3")["rope_parameters"]
    assert by_kind["sliding_attention"] == {"rope_type": "default", "rope_theta": 5e5}
    assert by_kind["full_attention"]["attention_factor"] == pytest.approx(1.2)
    newer = read("olmo3", rope_parameters=by_kind, sliding_window=8, layer_types=kinds)
    assert newer["model_config"]["sliding_window"] == window
    assert newer["model_config"]["rope_scaling"]["mscale"] == pytest.approx(scaling["mscale"])


@pytest.mark.parametrize("magnitude", [1.0, 1.5])
def test_yarns_magnitude_may_be_a_number_of_its_own(magnitude):
    """Yarn's attention_factor, 1 included, becomes the mscale that gives this magnitude, and is written as
    attention_factor again."""
    ours = read("llama", rope_scaling={**YARN, "attention_factor": magnitude})
    assert yarn_magnitude(YARN["factor"], ours["model_config"]["rope_scaling"]["mscale"]) == pytest.approx(magnitude)
    assert written(ours, "llama")["rope_parameters"]["attention_factor"] == pytest.approx(magnitude)


def test_a_window_of_some_layers_is_not_written_for_mistral():
    """A sliding window of some layers alone is refused for mistral, whose config.json can only say all layers."""
    ours = read("mistral", sliding_window=5)
    ours["model_config"]["sliding_window"]["skip_freq"] = [1, 0, 1, 0]
    with pytest.raises(ValueError, match="layers with a sliding window"):
        written(ours, "mistral")


@pytest.mark.parametrize(
    ("section", "values", "words"),
    [
        ("sparse_attention", {"variant": "dsa", "dsa_indexer_loss_coeff": 1.0}, "cannot say model_config.sparse"),
        ("multi_token_prediction", {"num_layers": 1}, "no multi-token prediction"),
    ],
)
def test_what_a_family_lacks_is_refused_before_it_is_trained(section, values, words):
    """Settings for parameters that a family's table lacks (an indexer, multi-token prediction) are refused when
    config.json is written."""
    ours = read("deepseek_v2", **DEEPSEEK)
    assert written(ours, "deepseek_v2")["model_type"] == "deepseek_v2"
    ours["model_config"][section] = values
    with pytest.raises(ValueError, match=words):
        written(ours, "deepseek_v2")


def test_a_network_without_a_pattern_of_layers_is_refused():
    """A network that differs from a family of state spaces in lacking a pattern of layers alone is refused with the
    families' misfits."""
    ours = read("llama")
    ours["model_config"]["position_embedding_type"] = "none"
    with pytest.raises(ValueError, match="mamba2: --hybrid-layer-pattern None") as raised:
        written(ours, None)
    assert "nemotron_h: " in str(raised.value)


def test_sparse_attention_is_deepseek_v32s():
    """DeepSeek-V3.2's indexer sizes are read and written; its list of dense and sparse layers becomes moe_layer_freq,
    and first_k_dense_replace is written."""
    sizes = {"index_n_heads": 4, "index_head_dim": 8, "index_topk": 5, "q_lora_rank": 16}
    types = {"mlp_layer_types": ["dense", "dense", "sparse", "sparse"]}
    ours = read("deepseek_v32", **DEEPSEEK, **sizes, **types)
    assert ours["moe_config"]["moe_layer_freq"] == [0, 0, 1, 1]
    again = written(ours, None)
    assert again["model_type"] == "deepseek_v32" and sizes.items() <= again.items()
    assert again["first_k_dense_replace"] == 2


def test_rows_of_an_indexer():
    """An indexer's rows are reordered both ways: HuggingFace rotates channels i and i + r/2 together and has them
    first, ours are neighbours behind the plain channels."""
    rows = IndexerRows(size=6, rotary=4)
    assert rows.ours() == [4, 5, 0, 2, 1, 3]
    assert [rows.ours()[row] for row in rows.theirs()] == list(range(6))
    tensor = of_array(np.arange(12.0))
    there = INDEXER.join([tensor], Rows(QueryKeyValueRows(1, 1, 1), rows))
    assert there.read().tolist() == [4, 5, 0, 2, 1, 3, 10, 11, 6, 8, 7, 9]
