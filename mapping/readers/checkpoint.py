"""What a checkpoint says of its run: --use-checkpoint-args takes the model from it instead of from the flags.

Which options that are, and whether a flag that is given wins, is as in Megatron-LM's `load_args_from_checkpoint`. That
takes no option that is newer than itself; here those that shape a network fill in what no flag says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mapping.given import ROW_OF, Given
from mapping.readers.yaml_sections import coerced
from parallel_core.checkpoint.convert.networks import OF_NETWORK
from parallel_core.checkpoint.convert.reader import holds_checkpoint, open_checkpoint
from parallel_core.checkpoint.convert.settings import get
from parallel_core.checkpoint.reader import CheckpointReader
from parallel_core.config.tree import FLAG_OF, OPTIONS, PUBLIC, path_of
from parallel_core.findings import Finding

_ASKS, _SIZES_TOO, _TOKENIZER_TOO = map(
    path_of,
    ("use_checkpoint_args", "use_mp_args_from_checkpoint_args", "use_tokenizer_model_from_checkpoint_args"),
)
_TOKENIZER = path_of("tokenizer_type")
_LOAD, _STEP, _SAVE = map(path_of, ("load_checkpoint", "ckpt_step", "output_dir"))

_FILLS_IN = (
    "model_config.num_layers", "hidden_size", "ffn_hidden_size", "seq_length", "num_attention_heads", "kv_channels",
    "max_position_embeddings", "model_config.vocab_size", "unpadded_vocab_size",
)  # fmt: skip
"""Taken where no flag says it."""
_WINS = (
    "group_query_attention", "num_query_groups", "position_embedding_type", "use_rotary_embedding", "rotary_base",
    "rotary_percent", "rotary_interleaved", "add_bias_linear", "mlp_has_bias", "out_proj_has_bias", "qkv_has_bias",
    "hidden_act", "untie_embeddings_and_output_weights", "apply_layernorm_1p", "normalization",
    "apply_query_key_layer_scaling", "attention_dropout_rate", "hidden_dropout_rate", "num_experts", "moe_layer_freq",
    "moe_ffn_hidden_size", "moe_router_topk", "moe_token_dispatcher_type", "moe_router_pre_softmax", "moe_grouped_gemm",
    "moe_shared_expert_intermediate_size", "tokenizer_type",
)  # fmt: skip
"""Taken whatever the flags say."""
_SIZES = (
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size",
    "expert_model_parallel_size",
)  # fmt: skip
"""Taken whatever the flags say with --use-mp-args-from-checkpoint-args."""
_OF_A_RUN = ("attention_dropout_rate", "hidden_dropout_rate", "moe_token_dispatcher_type", "moe_grouped_gemm", *_SIZES)
"""Of the training rather than of the network: files of other tools may not say it."""
_NETWORK = (
    "multi_latent_attention.", "sparse_attention.", "rope_scaling.", "multi_token_prediction.", "sliding_window.",
)  # fmt: skip
"""Sections of the model that say what is computed."""
_ADAPTERS = tuple(map(path_of, ("lora_rank", "lora_alpha", "target_modules", "lora_config.cells")))
"""Of low-rank adapters, where the checkpoint has some."""
_NONE_COUNTS = path_of("rope_scaling.type")
"""Positions that are not scaled: where no flag is given, those of latent attention would be."""


@dataclass
class Said:
    """A checkpoint's values."""

    fills_in: list[Given] = field(default_factory=list)
    """Weaker than flags and files."""
    wins: list[Given] = field(default_factory=list)
    """Stronger than both."""
    findings: list[Finding] = field(default_factory=list)

    def values(self, config: Mapping[str, Any], paths: Iterable[str], source: str) -> Iterator[Given]:
        """What a configuration has at these paths; a value that is none of its option is a finding."""
        for path in paths:
            value = get(config, path)
            if value is not None or path == _NONE_COUNTS:
                try:
                    made = Given(PUBLIC[path], coerced(path, value), field=path, source=source)
                    yield made._replace(row=ROW_OF["tokenizer_type"]) if path == _TOKENIZER else made
                except (ValueError, TypeError):
                    rule = (
                        f"is what the checkpoint {source} says (--use-checkpoint-args), and no value that it can have"
                    )
                    fix = "load another checkpoint, or leave --use-checkpoint-args out and give the flags"
                    self.findings.append(Finding(FLAG_OF[path], repr(value), rule, fix))


def read(given: Sequence[Given]) -> Said:
    """What the checkpoint says that `given` (the stronger value later) asks to be asked; nothing if none is asked."""
    asked = {entry.target: entry.value for entry in given}
    if not asked.get(_ASKS):
        rule, fix = "acts beside --use-checkpoint-args alone", "add that or leave it out"
        alone = [Finding(FLAG_OF[path], None, rule, fix) for path in (_SIZES_TOO,) if asked.get(path)]
        return Said(findings=alone)
    directory = asked.get(_LOAD)
    if directory is None:
        return Said(findings=[Finding("--use-checkpoint-args", None, "needs --load", "add it")])
    if _is_first_start(Path(directory), asked.get(_SAVE)):
        return Said()  # As in Megatron: the flags say all.
    try:
        reader = open_checkpoint(Path(directory), asked.get(_STEP), optimizer=False)
    except ValueError as error:
        return Said(findings=[Finding("--use-checkpoint-args", None, f"cannot read --load: {error}", "mend it")])
    return _said(reader, str(directory), asked)


def _is_first_start(directory: Path, saves: str | None) -> bool:
    """A run that ended before it saved may have left other files where it would have."""
    if not directory.is_dir() or not any(directory.iterdir()):
        return True
    return saves is not None and Path(saves).resolve() == directory.resolve() and not holds_checkpoint(directory)


def _said(reader: CheckpointReader, source: str, asked: Mapping[str, Any]) -> Said:
    config = reader.manifest.config
    wins = [*_WINS, *(["tokenizer_model"] if asked.get(_TOKENIZER_TOO, True) else [])]
    wins += _SIZES if asked.get(_SIZES_TOO) else ()
    unsaid = {path for path in map(path_of, _OF_A_RUN) if not reader.says(path)}
    first = [path_of(name) for name in wins]
    adapters = _ADAPTERS if get(config, _ADAPTERS[0]) else ()
    fills_in = [path for path in (*map(path_of, _FILLS_IN), *_shapes_a_network(), *adapters) if path not in first]
    found = Said()
    found.fills_in = [*found.values(config, dict.fromkeys(fills_in), source), *_tokenizer(config, source)]
    found.wins = list(found.values(config, [path for path in dict.fromkeys(first) if path not in unsaid], source))
    if asked.get(_SIZES_TOO) and unsaid.issuperset(map(path_of, _SIZES)):
        rule = f"{source} does not say on how many ranks it was made"
        found.findings.append(Finding(FLAG_OF[_SIZES_TOO], None, rule, "give the sizes by their flags instead"))
    return found


def _tokenizer(config: Mapping[str, Any], source: str) -> Iterator[Given]:
    """The arguments from which kind and ids of the tokenizer are derived; a NullTokenizer has one id more than said."""
    kind, ids = get(config, "dataset_config.tokenizer_type"), get(config, "model_config.unpadded_vocab_size")
    if kind is not None:
        yield Given("dataset_config.tokenizer_type", kind, ROW_OF["tokenizer_type"], source=source)
    if ids is not None:
        yield Given("model_config.vocab_size", ids - (kind == "NullTokenizer"), ROW_OF["vocab_size"], source=source)


def _shapes_a_network() -> Iterator[str]:
    for path in OPTIONS:
        section, _, name = path.partition(".")
        if section in ("model_config", "moe_config") and (name in OF_NETWORK or name.startswith(_NETWORK)):
            yield path
