"""Conditions under which options of the layout of ranks, of gradients between replicas and of the device have no
effect, and the reasons."""

from parallel_core.config.all import AllConfig
from parallel_core.no_effect.row import Idle, all_of, needs, unless, where


def _has_one_replica(config: AllConfig) -> bool:
    return config.parallel_config.data_parallel_size * config.parallel_config.context_parallel_size == 1


def _divides_exactly(config: AllConfig) -> bool:
    """Whether gradients are the same to the bit when they are divided by the number of replicas before they are summed:
    the number is a power of two, and the type is not float16."""
    replicas = config.parallel_config.data_parallel_size
    return replicas & (replicas - 1) == 0 and not config.training_config.precision.fp16


def _divides_sizes(config: AllConfig) -> bool:
    """Whether tensor parallelism divides all sizes, so that nothing is padded."""
    return not config.undivided


def _fits_one_order(config: AllConfig) -> bool:
    parallel = config.parallel_config
    return parallel.pipeline_model_parallel_size == 1 or parallel.data_parallel_size == 1


def _is_on_cpu(config: AllConfig) -> bool:
    return config.parallel_config.is_on_cpu


_REDUCED_IN_BF16 = all_of(where("grad_reduce_in_bf16", True), where("compute_dtype", "bfloat16"))
_ACCUMULATED = "gradients of float32 and bfloat16 weights are added up in float32 in any case"

ROWS = (
    Idle("unaligned_linear", _divides_sizes, "--tensor-model-parallel-size divides heads and widths"),
    Idle(
        "sequence_parallel",
        where("tensor_model_parallel_size", 1),
        "it does nothing at tensor-parallel size 1; needs --tensor-model-parallel-size 2 or more",
    ),
    Idle(
        "context_parallel_algo ulysses_degree_in_cp",
        where("context_parallel_size", 1),
        "needs --context-parallel-size 2 or more",
    ),
    Idle(
        "virtual_pipeline_model_parallel_size num_layers_per_virtual_pipeline_stage num_layer_list offset "
        "decoder_first_pipeline_num_layers decoder_last_pipeline_num_layers overlap_p2p_comm variable_seq_lengths "
        "account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split",
        where("pipeline_model_parallel_size", 1),
        "needs --pipeline-model-parallel-size 2 or more",
    ),
    Idle("rank_order", _fits_one_order, "needs pipeline and data parallelism, whose order this flag sets"),
    Idle(
        "overlap_grad_reduce delay_grad_reduce bucket_size wrap_with_ddp average_in_collective communication_data_type "
        "check_weight_hash_across_dp_replicas_interval overlap_param_gather parallel_optimizer_comm_recompute",
        _has_one_replica,
        "needs data parallelism: there is one replica",
    ),
    Idle(
        "average_in_collective",
        _divides_exactly,
        "the number of replicas is a power of two, by which float32 and bfloat16 are divided exactly",
    ),
    needs("overlap_grad_reduce", "delay_grad_reduce"),
    Idle("bucket_size", unless("wrap_with_ddp"), "there is one bucket with --no-wrap-with-ddp"),
    Idle(
        "bucket_size wrap_with_ddp",
        where("zero_stage", 2, 3),
        "with ZeRO stages 2 and 3 (--zero-stage) a bucket is a layer",
    ),
    Idle(
        "parallel_optimizer_comm_recompute",
        unless("zero_stage", 3),
        "needs --zero-stage 3: weights are whole all the time",
    ),
    Idle("accumulate_allreduce_grads_in_fp32", _REDUCED_IN_BF16, "--grad-reduce-in-bf16 counts, as in Megatron"),
    Idle("accumulate_allreduce_grads_in_fp32", unless("params_dtype", "float16"), _ACCUMULATED),
    Idle("grad_reduce_in_bf16", unless("compute_dtype", "bfloat16"), "needs --bf16"),
    Idle(
        "use_flash_attention",
        all_of(_is_on_cpu, unless("kernels", "ops")),
        "on a CPU attention keeps no scores in any case (--kernels host)",
    ),
    Idle("deterministic_mode", _is_on_cpu, "a CPU gives the same bits in any case"),
    Idle("apply_rope_fusion apply_swiglu_fusion input_layout", _is_on_cpu, "a CPU has one form of these operators"),
    needs("use_flash_attention", "input_layout"),
    Idle("cpu_offload_params", _is_on_cpu, "on a CPU weights are in host memory already"),
)
