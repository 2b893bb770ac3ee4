"""One spelling for what versions of Megatron-LM, Transformer Engine's layers and MindSpeed-Core-MS call a parameter.

Rows are (pattern, replacement), applied in order, each to the name that the rows before it have made. In Megatron's
older grouped product the first linears of a rank's e experts are one parameter, `weight1` [h, e 2f], and the second
ones another, `weight2` [e f, h], but their memory means [e, h, 2f] and [e, f, h]: transposed against linears of their
own. Experts without a gate have f in place of 2f.
"""

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

from parallel_core.checkpoint.convert.model import VOCABULARY
from parallel_core.checkpoint.lazy import LazyTensor
from parallel_core.config import serialise

BEFORE_CORE = (
    (r"^(module\.)+", ""),
    (r"^(language_model|network|model)\.", ""),
    (r"^(encoder|transformer)\.", "decoder."),
    (r"^word_embeddings_for_head\.", "output_layer."),
    (r"\.attention\.", ".self_attention."),
    (r"\.(query_key_value|qkv_proj)\.", ".linear_qkv."),
    (r"\.self_attention\.(dense|out_proj)\.", ".self_attention.linear_proj."),
    (r"\.mlp\.(dense_h_to_4h|mapping)\.", ".mlp.linear_fc1."),
    (r"\.mlp\.(dense_4h_to_h|projection)\.", ".mlp.linear_fc2."),
    (r"\.input_norm\.", ".input_layernorm."),
    (r"\.post_attention_(norm|layernorm)\.", ".pre_mlp_layernorm."),
)
"""Rows for the models from before Megatron-Core, and for MindSpeed-Core-MS's."""

_OLD = re.compile(r"(query_key_value|qkv_proj|dense|dense_h_to_4h|mapping|dense_4h_to_h|projection)\.(weight|bias)$")

TRANSFORMER_ENGINE = (
    (r"\.self_attention\.linear_qkv\.layer_norm_", ".input_layernorm."),
    (r"\.mlp\.linear_fc1\.layer_norm_", ".pre_mlp_layernorm."),
    (r"\.linear_q_up_proj\.layer_norm_", ".q_layernorm."),
    (r"\.linear_kv_up_proj\.layer_norm_", ".kv_layernorm."),
    (r"\.mlp\.experts\.experts\.(\d+)\.", r".mlp.experts.local_experts.\1."),
    (r"\.mlp\.experts\.linear_(fc[12])\.(weight|bias)(\d+)$", r".mlp.experts.local_experts.\3.linear_\1.\2"),
    (r"\.self_attention\.in_proj\.layer_norm_", ".input_layernorm."),
    (r"\.mixer\.in_proj\.layer_norm_", ".norm."),
    (r"^decoder\.final_norm\.", "decoder.final_layernorm."),
)
"""Rows for Transformer Engine's layers: norms that are part of the linear after them, experts whose products are
grouped; and for the last norm of a stack of layers of one part each."""

NORMED = (
    ("input_layernorm", "self_attention.in_proj"),
    ("input_layernorm", "self_attention.linear_qkv"),
    ("norm", "mixer.in_proj"),
    ("pre_mlp_layernorm", "mlp.linear_fc1"),
)
"""(a layer's norm, the linear that holds it in Transformer Engine's layers); the first row that the layer has
counts."""
STACK = (
    (r"^decoder\.final_layernorm\.", "decoder.final_norm."),
    (r"\.mlp\.experts\.local_experts\.(\d+)\.linear_(fc[12])\.(weight|bias)$", r".mlp.experts.linear_\2.\3\1"),
)
"""Rows from our names to Megatron's in a stack of layers of one part each, whose experts' products are grouped; norms
inside of linears are `in_engine`'s."""

IS_NO_PARAMETER = re.compile(
    r"(^|\.)_extra_state(/.*)?$|^rng_state/|\.(rotary_emb|rotary_pos_emb)\.inv_freq$|\.router\.local_tokens_per_expert$"
)
"""Keys of files that are no weight: states of fp8, random states, constants, counts of tokens."""


def spellings(names: Iterable[str]) -> dict[str, str]:
    """Name in a file -> our name, for those of `names`, which are of one part of a model, that are weights (not
    IS_NO_PARAMETER).

    Old names (`BEFORE_CORE`) are translated only if one of `names` is a linear's old one, such as "query_key_value":
    the name of today's norm after attention was once that of the norm before the feed-forward block.
    """
    given = [name for name in names if not IS_NO_PARAMETER.search(name)]
    rows = (*(BEFORE_CORE if any(_OLD.search(name) for name in given) else ()), *TRANSFORMER_ENGINE)
    return {name: _rewritten(name, rows) for name in given}


def in_engine(name: str, own: str, names: Container[str], stack: bool) -> str:
    """The name `own` as Transformer Engine's layers have it: a norm that is part of a linear (NORMED) gets the name of
    that linear; with `stack` experts and the last norm are renamed by the rows STACK. name: our global name; own: the
    same with layers numbered within the chunk, experts within the rank; names: all global names, which show which
    linears there are; stack: whether layers have one part each, with grouped experts."""
    prefix = f"decoder.layers.{layer_of(name)}."
    for norm, linear in NORMED:
        if name.startswith(f"{prefix}{norm}.") and f"{prefix}{linear}.weight" in names:
            return own.replace(f".{norm}.", f".{linear}.layer_norm_", 1)
    return _rewritten(own, STACK) if stack else own


def _rewritten(name: str, rows: Iterable[tuple[str, str]]) -> str:
    for pattern, replacement in rows:
        name = re.sub(pattern, replacement, name)
    return name


_LAYER = re.compile(r"^decoder\.layers\.(\d+)\.")
_DEPTH = re.compile(r"^mtp\.layers\.(\d+)\.(\w+)\.")
PARTS_OF_DEPTH = ("embedding", "enorm", "hnorm", "eh_proj", "transformer_layer", "final_layernorm", "output_layer")
"""Modules of a depth of multi-token prediction, in the order of their parameters."""
_EXPERT = re.compile(r"\.local_experts\.(\d+)\.")


def layer_of(name: str) -> int | None:
    """The number of the decoder's layer in our name of a parameter; None if it has none."""
    found = _LAYER.match(name)
    return int(found[1]) if found else None


def expert_of(name: str) -> int | None:
    """The number of the expert in our name of a parameter; None if it has none."""
    found = _EXPERT.search(name)
    return int(found[1]) if found else None


def shifted(name: str, layers: int, experts: int) -> str:
    """A name of ours with `layers` added to the number of the decoder's layer in it and `experts` to its expert's."""
    name = _LAYER.sub(lambda m: f"decoder.layers.{int(m[1]) + layers}.", name)
    return _EXPERT.sub(lambda m: f".local_experts.{int(m[1]) + experts}.", name)


class Order(NamedTuple):
    """The order of the parameters of a layer, by the modules that have them. grouped: the first linears of all experts
    come before the second ones; fused: all experts' first linears are one parameter, and all second ones another."""

    modules: tuple[str, ...]
    grouped: bool = False
    """Whether the first linears of all experts come before the second ones."""
    fused: bool = False
    """Whether all experts' first linears are one parameter, and all second ones another."""


_INDEXER = ("linear_wq_b", "linear_wk", "k_norm", "linear_weights_proj")
"""Modules of sparse attention's indexer, which Megatron makes before attention's projections."""
_ATTENTION = (
    "linear_proj", "linear_qkv", "linear_q_proj", "linear_q_down_proj", "linear_q_up_proj", "linear_kv_down_proj",
    "linear_kv_up_proj", "q_layernorm", "k_layernorm", "kv_layernorm",
)  # fmt: skip
_STATES = "dt_bias", "A_log", "D"
"""Parameters by head of mixers that keep a state: a module's own parameters come before those of its submodules."""
_MIXING = "norm", "in_proj", "conv1d", "mixer.norm", "out_norm", "out_proj"
_REST = ("pre_mlp_layernorm", "router", "local_experts", "shared_experts", "linear_fc1", "linear_fc2")
_NORMED_LATENTS = (
    "linear_proj", "linear_q_proj", "linear_q_down_proj", "q_layernorm", "linear_q_up_proj", "linear_kv_down_proj",
    "kv_layernorm", "linear_kv_up_proj",
)  # fmt: skip

LOCAL_ORDER = Order(("input_layernorm", *_INDEXER, *_STATES, *_ATTENTION, *_MIXING, *_REST))
"""The order in Megatron's local layers, each expert with linears of its own."""

_MODULES = (
    LOCAL_ORDER.modules,
    # Transformer Engine's modules: a norm is part of the linear after it.
    (*_STATES, "linear_proj", "input_layernorm", *_ATTENTION[1:], *_MIXING, *_REST),
    (
        "input_layernorm",
        *_INDEXER,
        *_NORMED_LATENTS,
        *_REST,
    ),  # latent attention: the norms of the latents are parts of linears
)
ORDERS = tuple(Order(modules, *kind) for kind in ((), (True,), (True, True)) for modules in _MODULES)
"""All orders that are known."""
ENGINE_ORDER, STACK_ORDER = (Order(_MODULES[1], grouped) for grouped in (False, True))
"""The orders in Transformer Engine's layers, and in a stack of layers of one part each."""


def in_order(names: Iterable[str], order: Order = LOCAL_ORDER) -> list[str]:
    """The names in the order of Megatron's models: embeddings, the decoder's layers, each by `order`, the norm behind
    them, depths of multi-token prediction, output layer."""
    return sorted(names, key=lambda name: _place_in_model(name, order))


def _place_in_model(name: str, order: Order) -> tuple[int, ...]:
    layer, expert, is_bias = layer_of(name), expert_of(name), name.endswith(".bias")
    if name.startswith("embedding."):
        return 0, int("position" in name)
    start: tuple[int, ...]
    modules = order.modules
    named = [(-len(module), number) for number, module in enumerate(modules) if f".{module}." in f"{name}."]
    module = min(named)[1] if named else len(modules)  # the longest name that fits: mixer.norm is not the layer's norm
    if depth := _DEPTH.match(name):
        start = 3, int(depth[1]), PARTS_OF_DEPTH.index(depth[2])
    elif layer is None:
        return 2 + 2 * name.startswith("output_layer."), is_bias
    else:
        start = 1, layer
    of_expert = expert or 0, int("linear_fc2" in name)
    return *start, module, *(of_expert[::-1] if order.grouped else of_expert), int("gate_weight" in name), is_bias


EMBEDDING = VOCABULARY[0]


@dataclass(frozen=True)
class Chunk:
    """A chunk of a pipeline stage: its layers, and whether it is the model's first, which has the embedding, or last,
    which has the output layer and, with multi-token prediction, the embedding, too."""

    layers: range
    is_first: bool
    is_last: bool

    def parameters(
        self, names: Iterable[str], network: Mapping[str, Any], order: Order = LOCAL_ORDER
    ) -> list[tuple[str, str]]:
        """(global name, name in the chunk) of the parameters that the chunk has, of all of the model's `names`, in the
        order of the model (`in_order`). The two differ only for the copy of the word embedding that a tied model's last
        chunk, if it is not the first, has as its output layer. network: the settings' section `model_config`."""
        found = [(name, name) for name in in_order((name for name in names if self._has(name, network)), order)]
        tied = not network.get("untie_embeddings_and_output_weights", False)
        if tied and self.is_last and not self.is_first:
            found.append((EMBEDDING, "output_layer.weight"))
        return found

    def _has(self, name: str, network: Mapping[str, Any]) -> bool:
        """Whether the chunk has the parameter: embeddings are in the first chunk, and in the last one for multi-token
        prediction."""
        layer = layer_of(name)
        if layer is not None:
            return layer in self.layers
        if not name.startswith("embedding."):
            return self.is_last
        depths = serialise.get(network, "multi_token_prediction.num_layers") or 0
        return self.is_first or (self.is_last and depths > 0)


def chunks_of(layers: list[list[range]]) -> list[list[Chunk]]:
    """The chunks of a model, indexed [chunk][stage]. layers: the layers of each chunk, indexed in the same way."""
    last = (len(layers) - 1, len(layers[-1]) - 1)
    return [
        [Chunk(own, number == stage == 0, (number, stage) == last) for stage, own in enumerate(stages)]
        for number, stages in enumerate(layers)
    ]


_NUMBER = re.compile(r"\.local_experts\.\d+\.")
_FUSED = re.compile(r"(.*\.experts)\.weight([12])")


def apart(tensors: Mapping[str, LazyTensor], first: int, count: int) -> dict[str, LazyTensor]:
    """A rank's tensors with fused experts taken apart into `count` experts, numbered from `first`. Raises ValueError
    for a fused tensor if `count` is 0, if it is empty or no matrix, or if `count` does not divide its axis of
    experts."""
    found: dict[str, LazyTensor] = {}
    for name, tensor in tensors.items():
        match = _FUSED.fullmatch(name)
        if match is None:
            found[name] = tensor
            continue
        widths = int(match[2] == "1")
        if not count or len(tensor.shape) != 2 or not prod(tensor.shape) or tensor.shape[widths] % count:
            raise ValueError(f"{name}: {list(tensor.shape)} is not that of {count} experts, which its args say")
        for number in range(count):
            one = f"{match[1]}.local_experts.{first + number}.linear_fc{match[2]}.weight"
            found[one] = _expert(tensor, match[2] == "1", number, count)
    return found


def in_memory(names: Sequence[str], order: Order) -> list[list[str]]:
    """The names, which are in the model's order, in groups that are one parameter each in memory: with `order.fused`
    the first linears of a layer's experts, and the second ones; every other name by itself."""
    runs: list[list[str]] = []
    before = None
    for name in names:
        group = _NUMBER.sub(".local_experts.", name) if order.fused and expert_of(name) is not None else None
        if group is None or group != before:
            runs.append([])
        runs[-1].append(name)
        before = group
    return runs


def _expert(tensor: LazyTensor, is_first: bool, number: int, count: int) -> LazyTensor:
    hidden, size = tensor.shape[0 if is_first else 1], prod(tensor.shape) // count
    memory = tensor.flat().run(number * size, size)
    shape = (hidden, size // hidden) if is_first else (size // hidden, hidden)
    return memory.reshaped(shape).transposed()
