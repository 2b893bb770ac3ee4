"""Which operators a configuration wants fused: one switch each, and what this device makes of it."""

from parallel_core.config import ModelConfig
from pynative import kernels

NAMES = {
    "attention": "flash attention",
    "rotary": "rotary positions",
    "bias_activation": "swiglu",
    "rms_norm": "RMS norm",
}
"""Switched operator -> what people call it."""


def wanted(config: ModelConfig) -> list[str]:
    """The operators of `kernels` whose fused form the flags ask for, among those that the model has."""
    switches = {
        "attention": config.use_flash_attention,
        "rotary": config.apply_rope_fusion and config.position_embedding_type == "rope",
        "bias_activation": config.apply_swiglu_fusion and config.hidden_act == "swiglu",
        "rms_norm": config.normalization == "FusedRMSNorm",
    }
    return [operator for operator, is_on in switches.items() if is_on]


def select(config: ModelConfig) -> None:
    """Give every operator the form that its flag asks for; a model computes with what is selected when it runs."""
    kernels.fuse(wanted(config), config.fa_config.input_layout)


def notice(config: ModelConfig, device_target: str) -> str | None:
    """One line where a device lacks fused kernels for what was asked: the same mathematics runs, frugal with memory."""
    names = [NAMES[operator] for operator in wanted(config)]
    if device_target != "CPU" or not names:
        return None
    return f"No fused kernels on a CPU; the same mathematics runs in a memory-frugal form for: {', '.join(names)}"
