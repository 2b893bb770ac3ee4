"""A setting at its default never stops a run: as flag or in a file of any layout, alone and all at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from mapping import ConfigError, init_configs_from_dict, init_configs_from_yaml
from mapping.flags import BY_NAME, ROWS
from mapping.readers.yaml_file import values_of
from mapping.reading import read
from parallel_core.config.tree import OPTIONS, PUBLIC
from tests.support.assets import asset, recorded
from tests.support.mapping.lines import line
from tests.support.mapping.yaml_files import MEGATRON, nested, sections

STOCK = asset("megatron_flags/gpt_config.yaml")
FACTS = recorded("megatron_flags/flags.json.xz")["flags"]
FIELDS = recorded("megatron_flags/transformer_config.json")

BASES = {
    "dense": "",
    "experts": "--num-experts 4 --moe-router-num-groups 2 --moe-router-group-topk 1",
    "latent attention": "--multi-latent-attention --kv-lora-rank 32 --position-embedding-type rope",
    "adapters": "--lora-target-modules linear_qkv --bf16",
    "16 bits": "--fp16 --use-distributed-optimizer --overlap-grad-reduce",
    "recomputed": "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",
    "samples": "~train-iters --train-samples 100",
}

OF_THE_TREE = "<path computed by the tree>"
"""The recorded text in place of a default that a program computes from its own path."""

NEEDS_ROTARY = "--rope-type"
"""A flag left out: its default is yarn in a parser whose models are rotary, while the models here are not by
default."""


def typed(default: Any, *, stores: Any = None) -> list[str] | None:
    """The words that give a default on a command line; None where no words can (a switch at its default, None, an empty
    list)."""
    if stores is not None:
        return [] if default == stores else None
    values = default if isinstance(default, list | tuple) else [default]
    return [str(value) for value in values] if values and None not in values else None


def of_the_table() -> Iterator[tuple[str, list[str]]]:
    """(name, words of its default) of each flag of the table, by each of its names."""
    for row in ROWS:
        words = typed(row.default, stores=None if row.type else row.stores)
        if words is not None:
            yield from ((name, words) for name in (row.name, *row.aliases))


def of_the_parsers() -> Iterator[tuple[str, list[str]]]:
    """(name, words of its default there) of each flag of the public parsers."""
    for fact in FACTS:
        stores = {"store_true": True, "store_false": False}.get(fact["action"])
        words = typed(fact["default"], stores=stores) if stores is not None or fact["action"] == "store" else None
        if words is not None and fact["default"] not in ("==SUPPRESS==", OF_THE_TREE) and fact["flag"] != NEEDS_ROTARY:
            yield from ((name, words) for name in (fact["flag"], *fact["aliases"]))


DEFAULTS = sorted({(name, tuple(words)) for name, words in (*of_the_table(), *of_the_parsers())})


@pytest.mark.parametrize("first", range(20))
def test_no_flag_stops_a_run_beside_a_few_others(first):
    """Every twentieth flag, given at its default together, gives no error; defaults of all public parsers are tried."""
    few = DEFAULTS[first::20]
    assert {name for name, _ in few} <= BY_NAME.keys() and len(few) > 20
    assert read([*line(), *(word for name, words in few for word in (name, *words))], world_size=1).errors == []


@pytest.mark.parametrize("base", BASES.values(), ids=BASES)
def test_no_flag_stops_a_run_beside_all_others(base):
    """All flags of the table at their defaults before the user's values give no error, since the last value counts."""
    every = [word for name, words in of_the_table() for word in (name, *words)]
    assert read([*every, *line(base)], world_size=1).errors == []


def errors_of(content: dict) -> list[str]:
    """The errors of a configuration given as a dictionary."""
    try:
        init_configs_from_dict(content, world_size=1)
    except ConfigError as error:
        return error.errors
    return []


@pytest.mark.parametrize("number", [0, 1])
def test_no_argument_stops_a_run_in_megatrons_layout(number):
    """All arguments at their defaults in Megatron's YAML layout give no error, also with the other default where
    programs differ."""
    defaults = {row.dest: (row.default, *row.other_defaults, row.default)[number] for row in ROWS}
    assert errors_of({name: default for name, default in defaults.items() if default is not None} | MEGATRON) == []


@pytest.mark.parametrize(
    "kind, more",
    [("ModelParallelConfig and TransformerConfig", {}), ("MLATransformerConfig", {"position_embedding_type": "rope"})],
)
def test_no_field_of_megatrons_model_stops_a_run(kind, more):
    """All fields of Megatron's model config at their defaults, which its --yaml-cfg must have, give no error."""
    assert errors_of(MEGATRON | more | {"language_model": FIELDS[kind] | MEGATRON["language_model"]}) == []


def below(path: str, value: Any) -> dict:
    """A nested dictionary with `value` at the dotted path."""
    for name in reversed(path.split(".")):
        value = {name: value}
    return value


def merged(left: dict, right: dict) -> dict:
    """Both dictionaries joined at every depth; values of `right` count where both have one."""
    both = {key: merged(left[key], right[key]) for key in left.keys() & right.keys() if isinstance(left[key], dict)}
    return {**left, **right, **both}


@pytest.mark.parametrize("model", [sections(), nested()], ids=["sections", "nested"])
def test_no_option_stops_a_run_by_any_of_its_names(model):
    """All options at their defaults, under their own path and the documents', give no error."""
    every: dict = {}
    for name, default in [(name, one.default) for path, one in OPTIONS.items() for name in {path, PUBLIC[path]}]:
        if default is not None:
            every = merged(every, below(name, default))
    assert errors_of(merged(every, model)) == [] and len(every["training_config"]) > 50


DOCUMENTED = {
    "runner_config.gradient_accumulation_steps": 1,
    "runner_wrapper.use_clip_grad": False,
    "runner_wrapper.max_grad_norm": 1.0,
    "moe_config.callback_moe_droprate": False,
    "moe_config.save_token_distribution": False,
    "moe_config.enable_cold_hot_expert": False,
    "moe_config.hot_expert_num": 0,
    "moe_config.cold_token_percent": 1.0,
    "model_config.use_flash_attention": False,
    "recompute_config.select_recompute": False,
    "recompute_config.parallel_optimizer_comm_recompute": False,
    "recompute_config.mp_comm_recompute": True,
    "recompute_config.recompute_slice_activation": False,
}
"""Key -> the default that the documents give it."""


@pytest.mark.parametrize("model", [sections(), nested()], ids=["sections", "nested"])
@pytest.mark.parametrize("stage", [0, 3])
def test_no_documented_key_stops_a_run(model, stage):
    """Each key of the documents at its documented default, alone and all at once, gives no error."""
    content = merged(model, {"training_config": {"zero_stage": stage}})
    for key, value in DOCUMENTED.items():
        assert errors_of(merged(content, below(key, value))) == [], key
        content = merged(content, below(key, value))
    assert errors_of(content) == []


def test_the_file_that_megatron_ships_is_read():
    """Megatron's example YAML (its sizes made small) is read without an error, and its values count."""
    config = init_configs_from_yaml(STOCK, world_size=1)
    model, optimizer = config.model_config, config.optimizer_config
    assert (optimizer.betas, optimizer.min_lr, optimizer.lr_decay_style) == ((0.9, 0.95), 0.0002, "cosine")
    assert (model.hidden_act, model.position_embedding_type, model.rotary_percent) == ("swiglu", "rope", 0.5)
    assert (model.apply_layernorm_1p, model.attention_dropout_rate, model.add_bias_linear) == (True, 0.0, False)
    assert (config.training_config.training_iters, config.dataset_config.rampup_batch_size) == (6, [4, 4, 8])


@pytest.mark.parametrize(
    "change, field, value",
    [
        ({"activation_func": "gelu"}, "hidden_act", "gelu"),
        ({"activation_func": "squaredrelu"}, "hidden_act", "squared_relu"),
        ({"num_query_groups": 2, "group_query_attention": True}, "num_query_groups", 2),
        ({"window_size": [16, 0]}, "sliding_window.size", 16),
    ],
)
def test_a_changed_value_of_that_file_counts(change, field, value):
    """A changed value in Megatron's example YAML changes the config field."""
    content = yaml.safe_load(STOCK.read_text())
    model = init_configs_from_dict(content | {"language_model": content["language_model"] | change}).model_config
    for name in field.split("."):
        model = getattr(model, name)
    assert model == value


@pytest.mark.parametrize(
    "change, blamed",
    [
        ({"init_method": "xavier_uniform"}, "init_method xavier_uniform: must be one of normal"),
        ({"activation_func": "relu"}, "activation_func relu: must be one of gelu, swiglu, squaredrelu"),
        ({"use_kitchen": True}, "use_kitchen True: must be one of False"),
        ({"apply_query_key_layer_scaling": "yes"}, "apply_query_key_layer_scaling yes: must be true or false"),
        ({"tp_comm_atomic": True}, "tp_comm_atomic: there is no such key; did you mean tp_comm_atomic_"),
    ],
)
def test_what_that_file_cannot_say_is_named(change, blamed):
    """A value of Megatron's YAML layout that is not available is one error with key, value and those that may be."""
    (error,) = errors_of(MEGATRON | change)
    assert error.startswith(blamed)


@pytest.mark.parametrize("swapped", [False, True])
def test_of_two_keys_the_one_that_is_no_default_counts(swapped):
    """The key that is not at its default counts if two keys of a file fill one field, in either order; the other one is
    said to do nothing."""
    keys = [("norm_epsilon", 1e-5), ("layernorm_epsilon", 1e-6)]
    content = {"language_model": {}, **dict(reversed(keys) if swapped else keys)}
    given, findings = values_of(content, "x.yaml")
    (idle,) = [entry for entry in given if entry.reason]
    assert findings == [] and idle.name == "norm_epsilon" and "layernorm_epsilon 1e-06 counts" in idle.reason
    assert [entry.value for entry in given if entry.row.name] == [1e-6]


@pytest.mark.parametrize(
    "of_file, of_line, field, value",
    [
        ({"adam_beta1": 0.8, "adam_beta2": 0.95}, "--adam-beta1 0.7", "optimizer_config.betas", (0.7, 0.95)),
        (
            {"vocab_size": 500, "make_vocab_size_divisible_by": 1},
            "--extra-vocab-size 4",
            "model_config.vocab_size",
            504,
        ),
        ({"normalization": "RMSNorm"}, "--use-fused-rmsnorm", "model_config.normalization", "FusedRMSNorm"),
    ],
)
def test_a_flag_leaves_a_files_part_of_the_same_field(tmp_path, of_file, of_line, field, value):
    """A flag replaces the file's value of the same setting, and keeps the file's other values that fill the same
    field."""
    (tmp_path / "x.yaml").write_text(yaml.safe_dump(MEGATRON | of_file))
    found = read(["--yaml-cfg", str(tmp_path / "x.yaml"), *of_line.split()], world_size=1)
    section, name = field.split(".")
    assert found.errors == [] and getattr(getattr(found.config, section), name) == value


def test_a_flag_leaves_the_other_one_of_a_files_betas(tmp_path):
    """--adam-beta1 replaces the first of a file's betas and keeps the second."""
    (tmp_path / "x.yaml").write_text(yaml.safe_dump(sections(optimizer_config={"betas": ["8e-1", 0.95]})))
    found = read(["--yaml-cfg", str(tmp_path / "x.yaml"), "--adam-beta1", "0.7"], world_size=1)
    assert found.errors == [] and found.config.optimizer_config.betas == (0.7, 0.95)
