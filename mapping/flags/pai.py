"""Flags: Pai-Megatron-Patch."""

from mapping.flags.flag import group, ignored, off, refused, switch, value

FLAGS = group(
    "Pai-Megatron-Patch",
    *ignored(
        "it is read for raw text only, and --dataset must name indexed files",
        value("--max-padding-length", int),
    ),
    *refused(
        "this flag belongs to Pai-Megatron-Patch; use Megatron's own flag for it",
        value("--epochs", int),
        value("--intermediate-size", int),
        switch("--keep-last"),
        switch("--use-normhead"),
        value("--source-seq-len", int),
        value("--target-seq-len", int),
        value("--z-loss-weight", float, 0.0),
        value("--rotary-scale-factor", int, 1),
        switch("--moe"),
        value("--moe-topk", int, 1),
        value("--router-type", str, "topk", choices=("topk", "expert_choice")),
        off("--disable-bias-linear-fc", "add_bias_linear_fc"),
        off("--disable-bias-attn-fc", "add_bias_attn_fc"),
        off("--disable-parallel-output", "enable_parallel_output"),
        value("--num-shared-experts", int),
        value("--dataloader-seq-length", int),
    ),
    *ignored(
        "indexed files are read by --data-path",
        value(
            "--dataset",
            str,
            choices=("MMAP", "LLama-Pretrain-Idxmap", "LLama-Pretrain-Raw", "LLama-SFT-Raw"),
            refuses=dict.fromkeys(("LLama-Pretrain-Raw", "LLama-SFT-Raw"), "prepare the text as indexed files"),
        ),
    ),
    switch(
        "--enable-shared-expert",
        "moe_config.moe_shared_expert_gate",
        "A shared expert with a gate, as in Qwen's models.",
    ),
    value(
        "--shared-moe-ffn-hidden-size",
        int,
        None,
        "moe_config.moe_shared_expert_intermediate_size",
        "Width of the shared expert that --enable-shared-expert asks for.",
    ),
    value(
        "--train-mode",
        str,
        "pretrain",
        "dataset_config.instruction.labels_in_data",
        "finetune: data files hold the labels after each sequence's tokens.",
        choices=("pretrain", "finetune"),
    ),
    switch("--use-llama2-rotary-position-embeddings", "model_config.position_embedding_type", "Rotary positions."),
)
