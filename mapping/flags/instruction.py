"""Flags: fine-tuning on conversations."""

from mapping.flags.flag import group, switch, value
from mapping.flags.read import boolean

FLAGS = group(
    "fine-tuning on conversations",
    value(
        "--stage",
        str,
        None,
        "dataset_config.instruction.enabled",
        "sft: fine-tune on conversations.",
        choices=("sft", "dpo", "orm", "prm", "simpo", "ray_ppo", "ray_online_dpo", "ray_grpo", "trl_ppo"),
        refuses=dict.fromkeys(
            ("dpo", "orm", "prm", "simpo", "ray_ppo", "ray_online_dpo", "ray_grpo", "trl_ppo"),
            "learning from preferences or rewards is out of scope; only sft is done",
        ),
    ),
    switch("--is-instruction-dataset", "dataset_config.instruction.enabled"),
    value("--prompt-type", str, None, "dataset_config.instruction.prompt_type"),
    switch("--pack", "dataset_config.instruction.pack"),
    switch("--neat-pack", "dataset_config.instruction.neat_pack"),
    switch(
        "--no-pad-to-seq-lengths",
        "dataset_config.instruction.pad_to_seq_length",
        "Pad a sample only as far as its batch needs.",
    ),
    value("--pad-to-multiple-of", int, 8, "dataset_config.instruction.pad_to_multiple_of"),
    value("--tokenizer-padding-side", str, "right", "dataset_config.instruction.padding_side"),
    switch("--padded-samples", "dataset_config.instruction.padded_samples"),
    switch("--cut-max-seqlen", "dataset_config.instruction.cut_max_seqlen"),
    switch("--no-shuffle", "dataset_config.instruction.shuffle", "Read conversations in their order."),
    value("--fix-sub-seq-length", int, -1, "dataset_config.instruction.fix_sub_seq_length"),
    value("--enable-thinking", boolean, None, "dataset_config.instruction.enable_thinking"),
)
