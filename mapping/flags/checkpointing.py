"""Flags: checkpointing."""

from mapping.flags.flag import group, switch, value

FLAGS = group(
    "checkpointing",
    value("--save", str, None, "training_config.output_dir"),
    value("--load", str, None, "training_config.load_checkpoint"),
    value("--save-interval", int, None, "training_config.save_interval", aliases=("--persistent-save-interval",)),
    value(
        "--ckpt-format",
        str,
        "torch_dist",
        "training_config.ckpt_format",
        choices=("torch", "torch_dist", "torch_dcp", "fsdp_dtensor", "zarr"),
        refuses={"zarr": "use torch_dist"},
    ),
    switch("--no-save-optim", "training_config.no_save_optim"),
    switch("--no-save-rng", "training_config.no_save_rng"),
    switch("--no-load-optim", "training_config.no_load_optim"),
    switch("--no-load-rng", "training_config.no_load_rng"),
    switch("--finetune", "training_config.finetune"),
    value("--keep-checkpoint-max", int, 5, "training_config.keep_checkpoint_max"),
    value("--ckpt-prefix", str, "network", "training_config.prefix"),
    switch("--resume-training", "training_config.resume_training"),
    switch("--resume-crc-check", "training_config.crc_check"),
    switch("--new-dataset", "training_config.new_dataset"),
    value("--ckpt-step", int, None, "training_config.ckpt_step"),
    switch("--exit-on-missing-checkpoint", "training_config.exit_on_missing_checkpoint"),
    value("--save-retain-interval", int, None, "training_config.save_retain_interval"),
    switch("--enable-hf2mg-convert", "training_config.convert_from_huggingface"),
    switch("--enable-mg2hf-convert", "training_config.convert_to_huggingface"),
    value("--model-type-hf", str, None, "training_config.huggingface_model_type"),
)
