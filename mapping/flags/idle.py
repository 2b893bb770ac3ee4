"""Flags of several for one field: which of them do nothing beside others, and which say more of what others say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from mapping.flags.acting.moe import ROUTERS
from mapping.flags.notations import parts
from parallel_core.devices import is_on_cpu


class Idle(NamedTuple):
    """A flag that its field does not follow from under a condition."""

    flag: str
    is_idle: Callable[[Any], object]
    """Of all arguments."""
    reason: str


def _has_latent_attention(args: Any) -> bool:
    return args.multi_latent_attention or args.multi_head_latent_attention


def _stretches_by_rope_type(args: Any) -> bool:
    return _has_latent_attention(args) and not args.rope_scaling_type


def _folder_of_a_tokenizer(args: Any) -> Any:
    return args.tokenizer_model or args.tokenizer_name_or_path or args.load


ROWS = (
    Idle(
        "--share-mtp-embedding-and-output-weight",
        lambda args: not args.num_nextn_predict_layers,
        "the layers of --mtp-num-layers share them in any case",
    ),
    Idle(
        "--model_name_or_path", lambda args: args.resume_from_checkpoint, "--resume_from_checkpoint says what is loaded"
    ),
    Idle(
        "--make-vocab-size-divisible-by",
        lambda args: args.padded_vocab_size or args.pad_vocab_size_to,
        "the rows of the table are --padded-vocab-size",
    ),
    Idle(
        "--patch-tokenizer-type",
        lambda args: args.tokenizer_type and not _folder_of_a_tokenizer(args),
        "there is no folder of a tokenizer (--load, --tokenizer-model); --tokenizer-type says which",
    ),
    Idle(
        "--use-rope-scaling",
        _stretches_by_rope_type,
        "latent attention's positions are stretched as --rope-type says",
    ),
    Idle(
        "--rope-scaling-factor",
        _stretches_by_rope_type,
        "latent attention's positions are stretched by --rotary-scaling-factor",
    ),
    Idle(
        "--rotary-scaling-factor",
        lambda args: args.rope_scaling_type,
        "beside --rope-scaling-type positions are stretched by --rope-scaling-factor",
    ),
    Idle("--use-fused-rmsnorm", lambda args: is_on_cpu(args.device_target), "a CPU has one form of RMSNorm"),
    Idle(
        "--no-rope-fusion",
        lambda args: args.use_fused_rotary_pos_emb,
        "--use-fused-rotary-pos-emb counts, as in MindSpeed",
    ),
    Idle(
        "--moe-train-capacity-factor",
        lambda args: args.moe_model_type != "deepspeed_moe",
        "needs --moe-model-type deepspeed_moe",
    ),
    Idle(
        "--first-k-dense-replace",
        lambda args: isinstance(args.moe_layer_freq, list),
        "the list of --moe-layer-freq says which layers have experts",
    ),
    Idle(
        "--seq-aux",
        lambda args: {*ROUTERS}.isdisjoint(parts(args.moe_router_load_balancing_type)),
        "needs a --moe-router-load-balancing-type with an auxiliary loss, such as aux_loss",
    ),
    Idle("--input-jitter", lambda args: not args.moe_input_jitter_eps, "there is none without --moe-input-jitter-eps"),
    Idle("--moe-input-jitter-eps", lambda args: args.input_jitter is False, "--input-jitter switches it off"),
    Idle(
        "--moe-tp-extend-ep",
        lambda args: args.tensor_model_parallel_size == 1,
        "needs --tensor-model-parallel-size 2 or more",
    ),
    Idle(
        "--expert-tensor-parallel-size",
        lambda args: args.moe_tp_extend_ep,
        "--moe-tp-extend-ep leaves every expert whole",
    ),
)

REFINING = ("--extra-vocab-size", "--use-fused-rmsnorm", "--first-k-dense-replace", "--seq-aux")
"""Flags that say more of what another flag for the same field says, and so contradict none."""


def why_idle(flag: str, args: Any) -> str:
    """Why a flag does nothing beside the other arguments; empty if it acts."""
    rows = (row for row in ROWS if row.flag == flag and row.is_idle(args))
    return next((f"no effect: {row.reason}" for row in rows), "")
