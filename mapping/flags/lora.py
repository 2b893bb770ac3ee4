"""Flags: low-rank adapters."""

from mapping.flags.flag import group, value, values

FLAGS = group(
    "low-rank adapters",
    value("--lora-r", int, 16, "lora_config.lora_rank"),
    value("--lora-alpha", float, 32.0, "lora_config.lora_alpha"),
    values("--lora-target-modules", str, None, "lora_config.target_modules"),
    value("--lora-load", str, None, "lora_config.lora_load"),
    value("--lora-dropout", float, 0.0, "lora_config.lora_dropout"),
)
