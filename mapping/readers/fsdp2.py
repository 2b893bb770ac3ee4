"""MindSpeed's file for PyTorch's FSDP2 (--fsdp2-config-path), beside the flags: its keys and their meanings."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mapping.given import ROW_OF, Demand, Given
from mapping.readers.meaning import Entries, Meaning, Values, each, not_done, nothing, to, unknown, words
from parallel_core.findings import Finding
from parallel_core.system.files import read_yaml

_TYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
_WHOLE: Values = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
_RECOMPUTED = {"DotProductAttention": "core_attn", "MLP": "mlp", "MoELayer": "moe"}
"""Class of Megatron-Core -> the module that --recompute-modules names."""


def sharding_size(value: Any, entries: Entries) -> Values | str:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise ValueError("must be a number of ranks")
    return "all ranks that hold the same weights share them out; fewer would only take more memory"


def reshard(value: Any, entries: Entries) -> Values:
    """The meaning of reshard_after_forward: whether weights are gathered again for the backward: not for false, but
    for true, and for a number of ranks from 0 on (in FSDP2 so many ranks would keep the weights between them). Raises
    ValueError for any other value."""
    if not isinstance(value, int) or value < 0:
        raise ValueError("must be true, false or a number of ranks")
    return {"parallel_optimizer_comm_recompute": value is not False}


def computes_in(value: Any, entries: Entries) -> Values | str:
    """The meaning of param_dtype: a demand that the model computes in this type; for null the reason why it does
    nothing. Raises ValueError for an unknown type."""
    if value is None:
        return "the model says it"
    if not isinstance(value, str) or value not in _TYPES:
        raise ValueError(f"must be one of {', '.join(_TYPES)}")
    rule, fix = "the model computes in {}", "write that, or change --bf16 or --fp16"
    return {"": Demand(value, "compute_dtype", lambda has: has == _TYPES[value], rule, fix)}


def gives(value: Any, entries: Entries) -> Values | str:
    """The meaning of output_dtype, the type of what a wrapped module returns: for fp32 the reason why it does nothing,
    for other values the meaning that they have as param_dtype. Raises ValueError for an unknown type."""
    return "it rounds nothing" if value == "fp32" else computes_in(value, entries)


def recomputed(value: Any, entries: Entries) -> Values | str:
    """The meaning of recompute_modules: whole layers, or modules of each, by Megatron-Core's names of their classes;
    for an empty list, null or another value that is false the reason why it does nothing. Raises ValueError for
    another value that is no list, and for a list with another class."""
    if not value:
        return "it asks for nothing"
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ValueError("must be a list of classes with their modules")
    classes = [str(path).rpartition(".")[2] for path in value]
    known = ("TransformerLayer", *_RECOMPUTED)
    if not set(classes) <= set(known):
        raise ValueError(f"recomputes classes of Megatron-Core alone: {', '.join(known)}")
    if "TransformerLayer" in classes:
        return _WHOLE
    return {"recompute_granularity": "selective", "recompute_modules": [_RECOMPUTED[name] for name in classes]}


_LEFT_OUT = "leaving modules out, whose gradients nothing would then average over the ranks,"
_SAME_TYPE = "what enters a layer has the type that it computes in already"

KEYS: dict[str, Meaning] = {
    "sharding_size": sharding_size,
    "sub_modules_to_wrap": nothing("a layer's weights are gathered when it runs, whatever is wrapped"),
    "reshard_after_forward": reshard,
    "param_dtype": computes_in,
    "reduce_dtype": words({name: to("communication_data_type") for name in _TYPES} | {None: "gradients say it"}),
    "output_dtype": gives,
    "cast_forward_inputs": words(dict.fromkeys((True, False, None), _SAME_TYPE)),
    "ignored_modules": not_done(_LEFT_OUT),
    "offload_to_cpu": words({True: to("cpu_offload_optimizer", "cpu_offload_params"), False: {}, None: {}}),
    "recompute_modules": recomputed,
    **each("pin_memory num_to_forward_prefetch num_to_backward_prefetch", nothing("only speed changes")),
}
"""Key -> its meaning, in arguments."""


def read(path: str | None) -> tuple[list[Given], list[Finding]]:
    """The values of a file, and what is wrong with it. No file (None), and one that is not there, give two empty lists;
    `mapping.files.missing_files` has the finding about one that is not there."""
    if path is None:
        return [], []
    try:
        content = read_yaml(Path(path))
    except FileNotFoundError:
        return [], []
    except (OSError, ValueError) as error:
        return [], [Finding("--fsdp2-config-path", path, f"cannot be read: {error}", "mend the file")]
    if not isinstance(content, dict):
        return [], [Finding("--fsdp2-config-path", path, "must hold keys and values", "mend the file")]
    given: list[Given] = []
    findings: list[Finding] = []
    for key, value in content.items():
        try:
            given += _given(str(key), value, content, path)
        except KeyError:
            findings.append(unknown(str(key), [*KEYS], path))
        except ValueError as error:
            findings.append(Finding(str(key), str(value), str(error), "change it", path))
    return given, findings


def _given(key: str, value: Any, content: Entries, path: str) -> list[Given]:
    meaning = KEYS[key](value, content)
    if isinstance(meaning, str):
        return [Given(key, value, source=path, reason=meaning)]
    return [
        Given(key, value, source=path, demand=filled)
        if isinstance(filled, Demand)
        else Given(key, filled, ROW_OF[name], source=path)
        for name, filled in meaning.items()
    ]
