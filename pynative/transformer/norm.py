"""LayerNorm (Ba et al., 2016) and RMSNorm (Zhang and Sennrich, 2019)."""

from mindspore import Tensor, nn

from parallel_core.initial_values import Constant
from parallel_core.sharding import ShardSpec
from pynative import kernels
from pynative.parameter import make_parameter


class LayerNorm(nn.Cell):
    """(x - mean) / sqrt(variance + epsilon) * weight + bias over the last axis, epsilon inside the root."""

    def __init__(self, size: int, *, config, gain: float = 1.0, partial_over: str | None = None) -> None:
        super().__init__()
        self.epsilon = config.norm_epsilon
        self.zero_centered = config.apply_layernorm_1p
        spec = ShardSpec(shape=(size,), partial_over=partial_over)
        self.weight = make_parameter(spec, _gain(config, gain), config.params_dtype)
        self.bias = make_parameter(spec, Constant(0.0), config.params_dtype)

    def construct(self, x: Tensor) -> Tensor:
        """Any shape ending in `size`, the same shape back."""
        return kernels.layer_norm(x, self.weight, self.bias, self.epsilon, zero_centered=self.zero_centered)


class RMSNorm(nn.Cell):
    """x / sqrt(mean(x^2) + epsilon) * weight over the last axis."""

    def __init__(self, size: int, *, config, gain: float = 1.0, partial_over: str | None = None) -> None:
        super().__init__()
        self.epsilon = config.norm_epsilon
        self.zero_centered = config.apply_layernorm_1p
        spec = ShardSpec(shape=(size,), partial_over=partial_over)
        self.weight = make_parameter(spec, _gain(config, gain), config.params_dtype)

    def construct(self, x: Tensor) -> Tensor:
        """Any shape ending in `size`, the same shape back."""
        return kernels.rms_norm(x, self.weight, self.epsilon, zero_centered=self.zero_centered)


def _gain(config, gain: float) -> Constant:
    """--apply-layernorm-1p stores the gain less one."""
    return Constant(gain - 1.0 if config.apply_layernorm_1p else gain)


_NORMS = {"LayerNorm": LayerNorm, "RMSNorm": RMSNorm, "FusedRMSNorm": RMSNorm}


def get_norm(config, size: int | None = None, gain: float = 1.0, on_share: bool | None = None) -> nn.Cell:
    """The config's norm over `size` (default: hidden size), its weight starting at `gain`.

    on_share: each tensor-parallel rank norms a share of the whole, such as its heads (see ShardSpec). None:
    its piece of the sequence, which is what a norm outside of the tensor-parallel regions sees.
    """
    if config.normalization not in _NORMS:
        raise ValueError(f"--normalization {config.normalization}: one of {', '.join(_NORMS)}")
    if on_share is None:
        on_share = config.parallel_config.sequence_parallel
    norm = _NORMS[config.normalization]
    return norm(size or config.hidden_size, config=config, gain=gain, partial_over="tp" if on_share else None)
