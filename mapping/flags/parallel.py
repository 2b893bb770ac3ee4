"""Flags: parallelism."""

from mapping.flags.flag import group, off, switch, value, values
from mapping.flags.read import integers, layer_list, literal
from mapping.flags.stages import pipeline_layout

FLAGS = group(
    "parallelism",
    value("--tensor-model-parallel-size", int, 1, "parallel_config.tensor_model_parallel_size"),
    value("--pipeline-model-parallel-size", int, 1, "parallel_config.pipeline_model_parallel_size"),
    value("--context-parallel-size", int, 1, "parallel_config.context_parallel_size"),
    value("--expert-model-parallel-size", int, 1, "parallel_config.expert_model_parallel_size"),
    value("--expert-tensor-parallel-size", int, None, "parallel_config.expert_tensor_parallel_size"),
    switch("--sequence-parallel", "parallel_config.sequence_parallel"),
    value(
        "--context-parallel-algo",
        str,
        None,
        "parallel_config.context_parallel_algo",
        choices=(
            "megatron_cp_algo",
            "ulysses_cp_algo",
            "hybrid_cp_algo",
            "adaptive_cp_algo",
            "hybrid_adaptive_cp_algo",
            "kvallgather_cp_algo",
            "mamba_cp_algo",
        ),
        refuses=dict.fromkeys(
            ("adaptive_cp_algo", "hybrid_adaptive_cp_algo", "mamba_cp_algo"),
            "use megatron_cp_algo, ulysses_cp_algo or hybrid_cp_algo",
        ),
    ),
    value("--ulysses-degree-in-cp", int, None, "parallel_config.ulysses_degree_in_cp"),
    value(
        "--num-layers-per-virtual-pipeline-stage", int, None, "parallel_config.num_layers_per_virtual_pipeline_stage"
    ),
    value("--num-layer-list", layer_list, None, "parallel_config.num_layer_list"),
    value(
        "--pipeline-model-parallel-layout",
        pipeline_layout,
        None,
        "parallel_config.num_layer_list",
        "Virtual stages, split by |: E(mbedding), t for each layer, m(ulti-token prediction), L(oss); Et*3|(tt|)*5mL.",
    ),
    value("--noop-layers", integers, None, "parallel_config.noop_layers"),
    value("--decoder-first-pipeline-num-layers", int, None, "parallel_config.decoder_first_pipeline_num_layers"),
    value("--decoder-last-pipeline-num-layers", int, None, "parallel_config.decoder_last_pipeline_num_layers"),
    switch("--standalone-embedding-stage", "parallel_config.standalone_embedding_stage"),
    off("--no-overlap-p2p-communication", "overlap_p2p_comm", "parallel_config.overlap_p2p_comm"),
    value("--distributed-timeout-minutes", float, 10.0, "parallel_config.distributed_timeout_minutes"),
    value(
        "--virtual-pipeline-model-parallel-size",
        int,
        None,
        "parallel_config.virtual_pipeline_model_parallel_size",
        aliases=("--virtual-pipeline-model-parallel-size-ms",),
    ),
    value(
        "--pipeline-schedule",
        str,
        None,
        "parallel_config.pipeline_schedule",
        choices=("gpipe", "1f1b", "interleaved", "zb-h1"),
    ),
    value("--recompute", literal, None, "parallel_config.recompute"),
    value("--select-recompute", literal, None, "parallel_config.select_recompute"),
    value("--select-comm-recompute", literal, None, "parallel_config.select_comm_recompute"),
    switch("--variable-seq-lengths", "parallel_config.variable_seq_lengths"),
    value(
        "--microbatch-group-size-per-virtual-pipeline-stage",
        int,
        None,
        "parallel_config.microbatch_group_size_per_virtual_pipeline_stage",
    ),
    value("--num-virtual-stages-per-pipeline-rank", int, None, "parallel_config.virtual_pipeline_model_parallel_size"),
    value("--pipeline-num-transformer-layers", layer_list, None, "parallel_config.num_layer_list"),
    switch("--account-for-embedding-in-pipeline-split", "parallel_config.account_for_embedding_in_pipeline_split"),
    switch("--account-for-loss-in-pipeline-split", "parallel_config.account_for_loss_in_pipeline_split"),
    switch("--use-tp-pp-dp-mapping", "parallel_config.rank_order", "Number stages before data-parallel copies."),
    values(
        "--cp-comm-type",
        str,
        ["p2p"],
        "parallel_config.context_parallel_algo",
        "How keys and values reach other ranks; allgather gives the same as p2p, the ring.",
        choices=("p2p", "a2a", "allgather", "a2a+p2p"),
    ),
    values(
        "--hierarchical-context-parallel-sizes",
        int,
        None,
        "parallel_config.ulysses_degree_in_cp",
        "Ranks of the inner and the outer exchange of a hybrid context parallelism.",
    ),
)
