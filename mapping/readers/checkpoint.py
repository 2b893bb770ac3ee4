"""The options that a checkpoint gives: --use-checkpoint-args takes the model from it instead of from the flags.

The choice of options, and whether a given flag wins, follows Megatron-LM's `load_args_from_checkpoint`. Further
options, those that shape a network and the losses that parts of it are trained by, fill in where nothing else gives
them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mapping.given import ROW_OF, Given
from mapping.readers.yaml_sections import coerced
from parallel_core.checkpoint.convert.reader import holds_checkpoint, open_checkpoint
from parallel_core.checkpoint.folders import unreadable
from parallel_core.checkpoint.reader import CheckpointReader
from parallel_core.config.serialise import get
from parallel_core.config.tree import FLAG_OF, OF_MODEL, OPTIONS, PUBLIC, path_of
from parallel_core.findings import Finding

_ASKS, _SIZES_TOO, _TOKENIZER_TOO = map(
    path_of,
    ("use_checkpoint_args", "use_mp_args_from_checkpoint_args", "use_tokenizer_model_from_checkpoint_args"),
)
_TOKENIZER = path_of("tokenizer_type")
_LOAD, _STEP, _SAVE = map(path_of, ("load_checkpoint", "ckpt_step", "output_dir"))

_LOSSES = ("dsa_indexer_loss_coeff", "dsa_indexer_use_sparse_loss", "loss_scaling_factor")
_FILLS_IN = [*map(path_of, ("seq_length", *_LOSSES)), *(path for path in OF_MODEL if OPTIONS[path].of != "run")]
"""Paths of options that are taken where no flag gives them: the network, and losses that parts of it are trained by."""
_WINS = (
    "group_query_attention", "num_query_groups", "position_embedding_type", "use_rotary_embedding", "rotary_base",
    "rotary_percent", "rotary_interleaved", "add_bias_linear", "mlp_has_bias", "out_proj_has_bias", "qkv_has_bias",
    "hidden_act", "untie_embeddings_and_output_weights", "apply_layernorm_1p", "normalization",
    "apply_query_key_layer_scaling", "attention_dropout_rate", "hidden_dropout_rate", "num_experts", "moe_layer_freq",
    "moe_ffn_hidden_size", "moe_router_topk", "moe_token_dispatcher_type", "moe_router_pre_softmax", "moe_grouped_gemm",
    "moe_shared_expert_intermediate_size", "tokenizer_type",
)  # fmt: skip
"""Options that are taken whatever the flags give."""
_SIZES = (
    "tensor_model_parallel_size", "pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size",
    "expert_model_parallel_size",
)  # fmt: skip
"""Options that are taken, with --use-mp-args-from-checkpoint-args, whatever the flags give."""
_ADAPTERS = tuple(map(path_of, ("lora_rank", "lora_alpha", "target_modules", "lora_config.cells")))
"""Paths of the options of low-rank adapters, taken if the checkpoint has adapters."""
_NONE_COUNTS = path_of("rope_scaling.type")
"""Path of the one option whose None is taken, too: without a flag latent attention's positions would be scaled."""


@dataclass
class Said:
    """The values that a checkpoint gives, by whether flags and files win over them, and findings about it."""

    fills_in: list[Given] = field(default_factory=list)
    """Values that flags and files win over."""
    wins: list[Given] = field(default_factory=list)
    """Values that win over flags and files."""
    findings: list[Finding] = field(default_factory=list)

    def values(self, config: Mapping[str, Any], paths: Iterable[str], source: str) -> Iterator[Given]:
        """The values of a saved configuration at these paths, without those that are None or missing. At the path of
        rope_scaling's type there always is one: None, also where it is missing, says that nothing is scaled. A value
        that its option cannot have is left out, and becomes one of `findings`. source: the checkpoint's folder."""
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
    """The values that --use-checkpoint-args takes from the checkpoint of --load; these and further flags are read from
    `given`, where of two values the stronger comes later. Empty without that flag, and at the first start of a run (the
    folder is empty, or is that of --save and holds no checkpoint). A missing --load, and a checkpoint that is missing
    or wrong, become findings. Raises OSError as `open_checkpoint`, and for a folder that cannot be listed."""
    asked = {entry.target: entry.value for entry in given}
    if not asked.get(_ASKS):
        return Said()
    directory = asked.get(_LOAD)
    if directory is None:
        return Said(findings=[Finding("--use-checkpoint-args", None, "needs --load", "add it")])
    if _is_first_start(Path(directory), asked.get(_SAVE)):
        return Said()  # As in Megatron, the flags decide at a first start.
    try:
        reader = open_checkpoint(Path(directory), asked.get(_STEP), optimizer=False)
    except ValueError as error:
        return Said(findings=[unreadable("--load", str(directory), error)])
    return _said(reader, str(directory), asked)


def _is_first_start(directory: Path, saves: str | None) -> bool:
    """Whether there is no checkpoint to load yet: the folder is empty, or it is the one to save to and holds none (a
    run that ended before it saved may have left other files there)."""
    if directory.is_dir() and not any(directory.iterdir()):
        return True
    return saves is not None and Path(saves).resolve() == directory.resolve() and not holds_checkpoint(directory)


def _said(reader: CheckpointReader, source: str, asked: Mapping[str, Any]) -> Said:
    config = reader.manifest.config
    wins = [*_WINS, *(["tokenizer_model"] if asked.get(_TOKENIZER_TOO, True) else [])]
    wins += _SIZES if asked.get(_SIZES_TOO) else ()
    adapters = _ADAPTERS if get(config, _ADAPTERS[0]) else ()
    of_a_run = [path for path in map(path_of, wins) if reader.begins and _is_of_a_run(path)]
    strong = [path for path in map(path_of, wins) if path not in of_a_run]
    fills_in = [path for path in (*_FILLS_IN, *of_a_run, *adapters) if path not in strong]
    found = Said()
    found.fills_in = [*found.values(config, dict.fromkeys(fills_in), source), *_tokenizer(config, source)]
    found.wins = list(found.values(config, strong, source))
    if asked.get(_SIZES_TOO) and all(get(config, path_of(name)) is None for name in _SIZES):
        rule = f"{source} does not say on how many ranks it was made"
        found.findings.append(Finding(FLAG_OF[_SIZES_TOO], None, rule, "give the sizes by their flags instead"))
    return found


def _is_of_a_run(path: str) -> bool:
    """Whether an option of the model belongs to its training ("run"); a HuggingFace checkpoint, which no run has
    trained, overrules no flag for such."""
    return path in OF_MODEL and OPTIONS[path].of == "run"


def _tokenizer(config: Mapping[str, Any], source: str) -> Iterator[Given]:
    """The arguments from which type and number of ids of the tokenizer are derived; a NullTokenizer has one id more
    than --vocab-size."""
    kind, ids = get(config, "dataset_config.tokenizer_type"), get(config, "model_config.unpadded_vocab_size")
    if kind is not None:
        yield Given("dataset_config.tokenizer_type", kind, ROW_OF["tokenizer_type"], source=source)
    if ids is not None:
        yield Given("model_config.vocab_size", ids - (kind == "NullTokenizer"), ROW_OF["vocab_size"], source=source)
