"""Megatron's --yaml-cfg layout: arguments by attribute name, two groups of them under headings of their own."""

from collections.abc import Iterator, Mapping
from typing import Any

from mapping.flags import ROWS, Flag
from mapping.flags.flag import attribute
from mapping.given import ROW_OF, Given
from mapping.readers.command_line import Unreadable, taken
from mapping.readers.meaning import Entries, Meaning, Values, each, nothing, unknown, words
from parallel_core.config.serialise import leaves
from parallel_core.findings import Finding

HEADINGS = ("language_model", "model_parallel")

RENAMED = {
    "layernorm_epsilon": "norm_epsilon",
    "layernorm_zero_centered_gamma": "apply_layernorm_1p",
    "num_moe_experts": "num_experts",
    "bias_activation_fusion": "bias_gelu_fusion",
    "microbatch_group_size_per_vp_stage": "microbatch_group_size_per_virtual_pipeline_stage",
    "num_layers_in_first_pipeline_stage": "decoder_first_pipeline_num_layers",
    "num_layers_in_last_pipeline_stage": "decoder_last_pipeline_num_layers",
    "use_te_rng_tracker": "te_rng_tracker",
    "fp8_param": "fp8_param_gather",
    "fp4_param": "fp4_param_gather",
}
"""Key that Megatron's model config names differently than its arguments -> the argument."""

ACTIVATIONS = {"gelu": "gelu", "swiglu": "swiglu", "squaredrelu": "squared_relu"}
"""Value of `activation_func` -> value of `hidden_act`."""


def _beside(other: str) -> Meaning:
    """The meaning of a key that says the same as the key `other`: nothing beside that; alone it is the argument of its
    name."""
    return lambda value, entries: f"{other} says it" if entries.get(other) is not None else ""


def _no_heading(value: Any, entries: Entries) -> Values:
    """The meaning of a heading with anything but keys below it, which is refused."""
    raise ValueError("must hold keys with values")


_NOTHING_ASKED = "it asks for nothing, as without it"

KEYS: dict[str, Meaning] = {
    **dict.fromkeys(HEADINGS, _no_heading),
    "activation_func": words({name: {"hidden_act": ours} for name, ours in ACTIVATIONS.items()}),
    **each("swiglu squared_relu openai_gelu", _beside("activation_func")),
    "gated_linear_unit": nothing("activation_func says it"),
    "num_query_groups": lambda value, entries: {"num_query_groups": value, "group_query_attention": True},
    "group_query_attention": _beside("num_query_groups"),
    **each(
        "init_method output_layer_init_method embedding_init_method",
        words({"normal": "weights start from a normal distribution"}),
    ),
    "perform_initialization": nothing("weights that are not loaded are initialised"),
    **each("enable_autocast autocast_dtype", nothing("bf16 and fp16 say the compute type")),
    "pipeline_dtype": nothing("stages send each other what they compute, in its type"),
    **each(
        "memory_efficient_layer_norm deallocate_pipeline_outputs cpu_offloading_activations cpu_offloading_weights "
        "cpu_offloading_double_buffering",
        nothing("only memory and speed change"),
    ),
    **each(
        "batch_p2p_comm batch_p2p_sync tp_comm_atomic_ag tp_comm_atomic_rs tp_comm_overlap_disable_qkv "
        "tp_comm_overlap_disable_fc1",
        nothing("only the order of work and communication changes, not the result"),
    ),
    **each(
        "activation_func_fp8_input_store disable_parameter_transpose_cache tp_only_amax_red fp8_dot_product_attention "
        "fp8_multi_head_attention",
        nothing("what it would compute in 8 bits is computed in 16"),
    ),
    **each("cuda_graph_use_single_mempool cuda_graph_retain_backward_graph", nothing("there are no CUDA graphs here")),
    "fused_single_qkv_rope": nothing("the result is the same"),
    "hetereogenous_dist_checkpoint": nothing("checkpoints are whole, whatever the layout"),
    **each("inference_sampling_seed use_inference_optimized_layers", nothing("training does not read it")),
    **each("use_kitchen heterogeneous_block_specs", words({False: _NOTHING_ASKED})),
    **each("gtp_weight_remat_size expert_gtp_weight_remat_size", words({1: _NOTHING_ASKED})),
    **each(
        "finalize_model_grads_func timers grad_scale_func moe_grad_scale_func mtp_grad_scale_func no_sync_func "
        "grad_sync_func param_sync_func experimental_attention_variant_loss_scale_func",
        nothing("the training loop sets it"),
    ),
}
"""Key that is no argument's name -> its meaning, in arguments."""


def is_layout_of(content: Mapping[str, Any]) -> bool:
    """Whether one of this layout's HEADINGS is among the top keys of a file."""
    return any(heading in content for heading in HEADINGS)


def read(content: Mapping[str, Any], source: str) -> tuple[list[Given], list[Finding]]:
    """The values of a dictionary in this layout, and findings about it. A key without a value, and a
    switch that asks for what holds without it, give none; a key that stands in several places, under headings and at
    the top, is read in each. source: the name of the dictionary, or of its file, in messages."""
    given: list[Given] = []
    findings: list[Finding] = []
    places = [(key, value) for key, value in _entries(content) if value is not None]
    entries = dict(places)
    for key, value in places:
        try:
            given += _read(key, value, entries, source)
        except Unreadable as error:
            findings.append(Finding(key, error.word, error.rule, "change it", source))
        except ValueError as error:
            findings.append(Finding(key, str(value), str(error), "change it", source))
        except KeyError:
            findings.append(unknown(key, [*_BY_DEST, *RENAMED, *KEYS], source))
    return given, findings


def _entries(content: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in leaves(content, lambda path: path in HEADINGS):
        heading, _, name = key.partition(".")
        yield name if name and heading in HEADINGS else key, value


_BY_DEST: dict[str, list[Flag]] = {}
for _row in ROWS:
    for _name in dict.fromkeys((_row.dest, *map(attribute, _row.aliases))):
        _BY_DEST.setdefault(_name, []).append(_row)


def _read(key: str, value: Any, entries: Entries, source: str) -> Iterator[Given]:
    """The values that a key gives. Raises KeyError for an unknown key, ValueError for a value that it cannot have."""
    meaning = KEYS[key](value, entries) if key in KEYS else ""
    if isinstance(meaning, Mapping):
        rows = [(ROW_OF[name], said) for name, said in meaning.items()]
        yield from (Given(key, taken(row, said), row, source=source) for row, said in rows)
    elif meaning:
        yield Given(key, value, source=source, reason=meaning)
    else:
        yield from _argument(key, value, _BY_DEST[RENAMED.get(key, key)], source)


def _argument(key: str, value: Any, rows: list[Flag], source: str) -> Iterator[Given]:
    """The argument that a key fills, by one of its flags' rows; nothing for a switch that asks for what holds without
    it."""
    first = ROW_OF[rows[0].dest]
    if isinstance(value, bool) and all(row.type is None for row in rows):
        switches = [row for row in rows if row.stores == value and value != first.default]
        yield from (Given(key, value, row, source=source) for row in switches[:1])
        return
    typed = [row for row in rows if row.type is not None]
    if not typed:
        raise ValueError("must be true or false")
    row = next((row for row in typed if row.asks_for_nothing(value)), None)
    if row is None:
        yield Given(key, taken(typed[0], value), typed[0], source=source)
    else:
        yield Given(key, value, row, source=source, is_default=True)
