"""Config fields that follow from several arguments, or from one in other words.

The function of a field reads the arguments by name (a missing one reads as None; `given` names those that were given,
as far as that is known) and returns the field's value, None to leave the field at its default, or `Unknown`.
"""

from collections.abc import Callable
from math import sqrt
from typing import Any

from mapping.derive.experts import OF_EXPERTS
from mapping.derive.hybrid import hybrid_pattern, layers, mamba_heads
from mapping.derive.mup import scale_of_embedding, scale_of_logits, scale_of_scores, width_multiplier
from mapping.derive.pipelines import OF_PIPELINES
from mapping.derive.sparse_attention import OF_SPARSE_ATTENTION
from mapping.derive.specs import OF_SPECS
from mapping.derive.vocabulary import padded_vocabulary, tokenizer_model, tokenizer_type, vocabulary
from mapping.flags.notations import dtype
from mapping.flags.with_option.dataset import INDEXED
from mapping.flags.with_option.training import STRATEGIES
from parallel_core.config.base import Unknown
from parallel_core.config.optimizer import SHARING_NAMES
from parallel_core.config.tree import path_of
from parallel_core.sizes import HYBRID, RANK_ORDERS, RING, ULYSSES


def hidden_act(args: Any) -> str | None:
    chosen = {
        "silu": args.swiglu and args.fc_type == "up_down",
        "swiglu": args.swiglu,
        "geglu": args.geglu,
        "geglu_tanh": args.gelu_tanh,
        "quick_geglu": args.quick_geglu,
        "squared_relu": args.squared_relu,
    }
    return next((name for name, on in chosen.items() if on), args.hidden_act)


def normalization(args: Any) -> str | None:
    return "FusedRMSNorm" if args.use_fused_rmsnorm else args.normalization


def position_embedding_type(args: Any) -> str | None:
    older = args.use_rotary_position_embeddings or args.use_llama2_rotary_position_embeddings
    rotary = older or args.position_embedding_type in ("yarn", "deepseek4")
    return "rope" if rotary else args.position_embedding_type


def latent_attention(args: Any) -> Any:
    return args.multi_latent_attention or args.multi_head_latent_attention


def rope_scaling_type(args: Any) -> str | None:
    """The kind of rotary scaling; None: there is none. Latent attention without --rope-scaling-type has Megatron's
    --rope-type (rope: None), by default yarn. Otherwise: llama3 with --use-rope-scaling; else yarn if
    --position-embedding-type or --rope-type is yarn; else --rope-scaling-type (plm: None)."""
    if latent_attention(args) and args.rope_scaling_type is None:
        return None if args.rope_type == "rope" else "yarn"
    if args.use_rope_scaling:
        return "llama3"
    yarn = "yarn" in (args.position_embedding_type, args.rope_type)
    return "yarn" if yarn else None if args.rope_scaling_type == "plm" else args.rope_scaling_type


def stretching_factor(args: Any) -> Any:
    """The scaling factor of rotary positions of ordinary attention: --rotary-scaling-factor, if it is given and not 1,
    positions are those of --position-embedding-type yarn, and no --rope-scaling-type is given; else
    --rope-scaling-factor."""
    given = args.rotary_scaling_factor
    by_megatron = args.position_embedding_type == "yarn" and not args.rope_scaling_type
    return given if by_megatron and given not in (None, 1.0) else args.rope_scaling_factor


def latent_factor(args: Any) -> Any:
    """The scaling factor of latent attention's positions: --rotary-scaling-factor, but --rope-scaling-factor if
    --rope-scaling-type is given; None without latent attention."""
    if not latent_attention(args):
        return None
    return args.rotary_scaling_factor if args.rope_scaling_type is None else args.rope_scaling_factor


def embedding_scale(args: Any) -> Any:
    if args.input_embeds_norm and args.hidden_size and args.hidden_size > 0:
        return sqrt(args.hidden_size)
    given = args.scale_emb or args.embedding_multiplier_scale
    return scale_of_embedding(args) if given in (None, 1.0) else given


def sliding_window(args: Any) -> Any:
    """Number of tokens before its own that a query sees in layers with a window: --interleave-sliding-window less 1, if
    that is given and not 0; else --sliding-window; else --window-size as it is; None: no window."""
    if args.interleave_sliding_window:
        return args.interleave_sliding_window - 1
    return args.window_size if args.sliding_window is None else args.sliding_window


def attention_scale(args: Any) -> float | None:
    divisor = args.query_pre_attn_scalar
    if divisor is None:
        return scale_of_scores(args)
    return 1 / sqrt(divisor) if divisor > 0 else divisor


def logit_scale(args: Any) -> Any:
    if args.dim_model_base and args.hidden_size:
        return args.dim_model_base / args.hidden_size
    return args.output_multiplier_scale or scale_of_logits(args)


def bias_of(own_argument: str) -> Callable[[Any], bool | None]:
    """The function for whether a linear has a bias: true if the argument `own_argument` is, else `add_bias_linear`."""
    return lambda args: True if getattr(args, own_argument) else args.add_bias_linear


def dtype_of(own_argument: str) -> Callable[[Any], str | None]:
    """The function for a field that is a type: by the argument `own_argument`; else bfloat16 with --bf16, float16 with
    --fp16, None with neither. It raises ValueError for a name that `dtype` does not take."""

    def read(args: Any) -> str | None:
        given = getattr(args, own_argument)
        if given is not None:
            return dtype(given)
        return "bfloat16" if args.bf16 else "float16" if args.fp16 else None

    return read


def recompute_granularity(args: Any) -> str | None:
    short = "full" if recomputes_layers(args) else "selective" if args.recompute_activations else None
    return args.recompute_granularity or short


def recomputes_layers(args: Any) -> bool:
    """Whether HuggingFace's --gradient_checkpointing is on and no --recompute-granularity is given."""
    return args.gradient_checkpointing and args.recompute_granularity is None


def fully_sharded_stage(args: Any) -> int | None:
    """The ZeRO stage that a flag for fully sharded data parallelism means; None without such a flag."""
    if args.use_megatron_fsdp or args.use_custom_fsdp:
        return STRATEGIES.index(args.data_parallel_sharding_strategy or STRATEGIES[-1])
    return 3 if args.use_torch_fsdp2 or args.enable_zero3 else None


def zero_stage(args: Any) -> int | None:
    stage = fully_sharded_stage(args)
    return args.zero_stage if stage is None else stage


def use_distributed_optimizer(args: Any) -> bool | None:
    """Whether the distributed optimizer is asked for: by its flag or, unless --zero-stage is 0, by some names of
    --optimizer; False with a flag for fully sharded data parallelism. None: none of these says it, and the arguments
    have no `use_distributed_optimizer`."""
    if fully_sharded_stage(args) is not None:
        return False
    return True if args.optimizer in SHARING_NAMES and args.zero_stage != 0 else args.use_distributed_optimizer


def communication_data_type(args: Any) -> str | None:
    """The type of gradients' messages: --communication-data-type, else --megatron-fsdp-grad-comm-dtype (auto: None)."""
    of_fsdp = args.megatron_fsdp_grad_comm_dtype
    return args.communication_data_type or (None if of_fsdp == "auto" else of_fsdp)


def expert_parallel_size(args: Any) -> Any:
    size = args.expert_model_parallel_size
    return size * (args.tensor_model_parallel_size or 1) if size and args.moe_tp_extend_ep else size


def context_parallel_algo(args: Any) -> str | None:
    by_exchange = {"a2a": ULYSSES, "a2a+p2p": HYBRID}.get((args.cp_comm_type or ["p2p"])[0])
    same_result = {"kvallgather_cp_algo": RING, "adaptive_cp_algo": RING, "hybrid_adaptive_cp_algo": HYBRID}
    return same_result.get(args.context_parallel_algo, args.context_parallel_algo) or by_exchange


def betas(args: Any) -> Any:
    both = (0.9 if args.adam_beta1 is None else args.adam_beta1, 0.999 if args.adam_beta2 is None else args.adam_beta2)
    return Unknown() if any(isinstance(beta, Unknown) for beta in both) else both


def resume_training(args: Any) -> bool | None:
    """Whether a run goes on where its checkpoint ended: true with HuggingFace's --resume_from_checkpoint; else what
    --resume-training or --no-resume-training says; else false with HuggingFace's --model_name_or_path; else None."""
    if args.resume_from_checkpoint is not None:
        return True
    return False if args.resume_training is None and args.model_name_or_path is not None else args.resume_training


def unless(argument: str) -> Callable[[Any], bool]:
    """The function for a field that is the opposite of its argument, whose name is `argument`."""
    return lambda args: not getattr(args, argument)


def further_loss_factor(args: Any) -> Any:
    """The weight of multi-token prediction's losses: --mtp-loss-scaling-factor if given, else MindSpeed-LLM's
    --mtp-loss-scale if given, else the default of the first, but with --num-nextn-predict-layers that of the second. In
    another parser's namespace, which does not say what was given, a value that is there and not the default counts."""
    factor, scale = args.mtp_loss_scaling_factor, args.mtp_loss_scale
    if scale is None or factor not in (None, 0.1) or "mtp_loss_scaling_factor" in args.given:
        return factor
    is_given = scale != 0.3 or "mtp_loss_scale" in args.given
    return scale if is_given or args.num_nextn_predict_layers else factor


def shares_with_further_layers(args: Any) -> bool:
    """Whether layers of multi-token prediction use the model's embedding and output layer: always, but with
    MindSpeed-LLM's --num-nextn-predict-layers only with --share-mtp-embedding-and-output-weight."""
    return args.share_mtp_embedding_and_output_weight or not args.num_nextn_predict_layers


_OLDER_CLASSES: dict[str, tuple[str, ...]] = {
    "query_key_value": ("linear_qkv",),
    "dense": ("linear_proj",),
    "dense_h_to_4h": ("linear_fc1",),
    "dense_4h_to_h": ("linear_fc2",),
}
"""Name of a linear in Megatron-LM's classes before its core, as --lora-target-modules may have it -> its names here."""
_LATENT: dict[str, tuple[str, ...]] = {
    "linear_qb": ("linear_q_up_proj",),
    "linear_kvb": ("linear_kv_up_proj",),
}
"""Name of a linear in MindSpeed-LLM's latent attention -> its names here. Its linear_qkv is two linears here."""


def target_modules(args: Any) -> list[str] | None:
    """Names of the linears that get an adapter: those given, but linears' names in Megatron's older classes, and in
    MindSpeed-LLM's latent attention, become their names here; None: not given."""
    if args.lora_target_modules is None:
        return None
    names: dict[str, tuple[str, ...]] = dict(_OLDER_CLASSES)
    if args.multi_latent_attention or args.multi_head_latent_attention:
        queries = "linear_q_proj" if args.q_lora_rank is None else "linear_q_down_proj"
        names |= _LATENT | {"linear_qkv": (queries, "linear_kv_down_proj")}
    return list(dict.fromkeys(name for given in args.lora_target_modules for name in names.get(given, (given,))))


_SIZES_OF_STATES = ("linear_key_head_dim", "linear_value_head_dim", "linear_num_key_heads", "linear_num_value_heads")


def given_size(argument: str) -> Callable[[Any], int | None]:
    """The function for a field that is a size, of which 0, MindSpeed-LLM's default, means not given: None."""
    return lambda args: getattr(args, argument) or None


_DERIVED: dict[str, Callable[[Any], Any]] = {
    "vocab_size": padded_vocabulary,
    "unpadded_vocab_size": vocabulary,
    "num_query_groups": lambda args: args.num_query_groups,
    "hidden_act": hidden_act,
    "normalization": normalization,
    "position_embedding_type": position_embedding_type,
    "use_rotary_embedding": lambda args: position_embedding_type(args) == "rope",
    "type": rope_scaling_type,
    "rope_scaling.factor": stretching_factor,
    "rotary_scaling_factor": latent_factor,
    "layer_pattern": hybrid_pattern,
    "mamba_num_heads": mamba_heads,
    "model_config.num_layers": layers,
    "linear_conv_kernel_dim": lambda args: (
        args.mamba_d_conv if args.full_attention_interval else args.linear_conv_kernel_dim
    ),
    **{name: given_size(name) for name in _SIZES_OF_STATES},
    "linear_attention_freq": lambda args: args.full_attention_interval or args.linear_attention_freq,
    "attention_output_gate": lambda args: args.attention_output_gate or bool(args.full_attention_interval),
    **OF_SPARSE_ATTENTION,
    "embedding": embedding_scale,
    "width_multiplier": width_multiplier,
    **OF_SPECS,
    "train_data_path": lambda args: None if args.train_data_path == args.data_path else args.train_data_path,
    "logits": logit_scale,
    "attention": attention_scale,
    "loss_scaling_factor": further_loss_factor,
    "share_embedding_and_output_weight": shares_with_further_layers,
    "size": sliding_window,
    "skip_freq": lambda args: 2 if args.interleave_sliding_window else args.window_attn_skip_freq,
    "qkv_has_bias": bias_of("add_qkv_bias"),
    "out_proj_has_bias": bias_of("add_dense_bias"),
    "use_final_norm": unless("no_post_layer_norm"),
    "params_dtype": dtype_of("params_dtype"),
    "compute_dtype": dtype_of("compute_dtype"),
    "lora_rank": lambda args: args.lora_r if args.lora_target_modules else None,
    "target_modules": target_modules,
    "recompute_granularity": recompute_granularity,
    "recompute_method": lambda args: args.recompute_method or ("uniform" if recomputes_layers(args) else None),
    "recompute_num_layers": lambda args: (
        1 if args.recompute_num_layers is None and recomputes_layers(args) else args.recompute_num_layers
    ),
    **OF_EXPERTS,
    "resume_training": resume_training,
    "betas": betas,
    "loss_scaler": lambda args: "adaptive" if args.adaptive_loss_scale else args.loss_scaler,
    "exp_avg_dtype": lambda args: "bf16" if args.o2_optimizer else args.exp_avg_dtype,
    "exp_avg_sq_dtype": lambda args: "bf16" if args.o2_optimizer else args.exp_avg_sq_dtype,
    "use_precision_aware_optimizer": lambda args: args.use_precision_aware_optimizer or args.o2_optimizer,
    "grad_reduce_in_bf16": lambda args: args.grad_reduce_in_bf16 or args.o2_gradient or args.main_grads_dtype == "bf16",
    "apply_wd_to_qk_layernorm": lambda args: (
        args.apply_wd_to_qk_layernorm or args.no_weight_decay_cond_type is not None
    ),
    **OF_PIPELINES,
    "zero_stage": zero_stage,
    "use_distributed_optimizer": use_distributed_optimizer,
    "communication_data_type": communication_data_type,
    "world_size": lambda args: args.world_size,
    "expert_model_parallel_size": expert_parallel_size,
    "expert_tensor_parallel_size": lambda args: 1 if args.moe_tp_extend_ep else args.expert_tensor_parallel_size,
    "context_parallel_algo": context_parallel_algo,
    "ulysses_degree_in_cp": lambda args: (
        args.ulysses_degree_in_cp
        if args.ulysses_degree_in_cp is not None
        else (args.hierarchical_context_parallel_sizes or [None])[0]
    ),
    "rank_order": lambda args: RANK_ORDERS[1] if args.use_tp_pp_dp_mapping else None,
    "tokenizer_type": tokenizer_type,
    "tokenizer_model": tokenizer_model,
    "raw": lambda args: None if args.dataset in INDEXED else args.dataset,
    "instruction.enabled": lambda args: args.stage == "sft" or bool(args.is_instruction_dataset),
    "variable_seq_lengths": lambda args: (
        args.variable_seq_lengths
        or bool(args.no_pad_to_seq_lengths and (args.stage == "sft" or args.is_instruction_dataset))
    ),
    "labels_in_data": lambda args: args.train_mode == "finetune",
    "pad_to_seq_length": unless("no_pad_to_seq_lengths"),
    "shuffle": unless("no_shuffle"),
}
DERIVED = {path_of(name): derive for name, derive in _DERIVED.items()}
"""Path of a field -> its function. Other fields are copied from the argument of a flag that targets them."""
