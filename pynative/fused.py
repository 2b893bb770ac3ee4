"""Which operators a configuration wants fused, and what this device makes of it."""

from parallel_core.config import ModelConfig


def wanted(config: ModelConfig) -> list[str]:
    """The fused operators that the flags ask for, by name."""
    asked = {
        f"flash attention ({config.fa_config.input_layout})": config.use_flash_attention,
        "rope": config.apply_rope_fusion,
        "swiglu": config.apply_swiglu_fusion,
        "masked softmax": config.masked_softmax_fusion,
        f"the layers of {config.transformer_impl}": config.transformer_impl != "local",
        "rms norm": config.normalization == "FusedRMSNorm",
    }
    return [name for name, is_asked in asked.items() if is_asked]


def notice(config: ModelConfig, device_target: str) -> str | None:
    """One line where a device lacks fused kernels for what was asked: the same mathematics runs, frugal with memory."""
    names = wanted(config)
    if device_target != "CPU" or not names:
        return None
    return f"No fused kernels on a CPU; the same mathematics runs in blocks for: {', '.join(names)}"
