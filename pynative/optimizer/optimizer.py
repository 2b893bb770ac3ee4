"""Weight updates: one sweep over each segment of the flat buffers."""

import numpy as np
from mindspore import Parameter, Tensor

from parallel_core.config import AllConfig, OptimizerConfig
from parallel_core.lr_schedule import OptimizerParamScheduler
from pynative import kernels
from pynative.distributed.flat_memory import FlatMemory
from pynative.distributed.param_and_grad_buffer import ParamAndGradBuffer, Segment


class FlatOptimizer:
    """What Adam and SGD share: state vectors as long as the parameter buffer, and the sweep over its segments."""

    state_names: tuple[str, ...] = ()

    def __init__(self, config: OptimizerConfig, buffer: ParamAndGradBuffer) -> None:
        self.config, self.buffer = config, buffer
        self.state = {name: FlatMemory(buffer.size) for name in self.state_names}
        self.steps = 0

    def step(self, learning_rate: float, weight_decay: float, grad_scale: float) -> None:
        """Update every weight from its gradient times `grad_scale`."""
        self.steps += 1
        for segment in self.buffer.segments:
            self._update(segment, learning_rate, weight_decay * segment.weight_decay_multiplier, grad_scale)

    def _update(self, segment: Segment, learning_rate: float, weight_decay: float, grad_scale: float) -> None:
        raise NotImplementedError

    def _slices(self, segment: Segment) -> list[Tensor]:
        """The segment of parameters, gradients and each state vector."""
        memories = [self.buffer.parameters, self.buffer.gradients, *self.state.values()]
        return [memory.view(segment.start, (segment.stop - segment.start,)) for memory in memories]

    def state_of(self) -> list[tuple[Parameter, dict[str, np.ndarray]]]:
        """Each parameter with views of its state, for checkpoints."""
        return [
            (
                piece.parameter,
                {n: m.view(piece.start, tuple(piece.parameter.shape)).asnumpy() for n, m in self.state.items()},
            )
            for piece in self.buffer.pieces
        ]


class Adam(FlatOptimizer):
    """AdamW (Loshchilov and Hutter, 2019), decay before the step, epsilon after the bias-corrected root."""

    state_names = ("exp_avg", "exp_avg_sq")

    def _update(self, segment: Segment, learning_rate: float, weight_decay: float, grad_scale: float) -> None:
        beta1, beta2 = self.config.betas
        kernels.adamw_(
            *self._slices(segment),
            learning_rate=learning_rate,
            beta1=beta1,
            beta2=beta2,
            epsilon=self.config.eps,
            weight_decay=weight_decay,
            step=self.steps,
            grad_scale=grad_scale,
        )


class Sgd(FlatOptimizer):
    """Gradient descent with momentum; weight decay is added to the gradient."""

    state_names = ("momentum_buffer",)

    def _update(self, segment: Segment, learning_rate: float, weight_decay: float, grad_scale: float) -> None:
        kernels.sgd_(
            *self._slices(segment),
            learning_rate=learning_rate,
            momentum=self.config.sgd_momentum,
            weight_decay=weight_decay,
            grad_scale=grad_scale,
        )


_OPTIMIZERS = {"adam": Adam, "sgd": Sgd}


def get_optimizer(config: OptimizerConfig, buffer: ParamAndGradBuffer) -> FlatOptimizer:
    """The optimizer that --optimizer names, over a model's buffer."""
    if config.optimizer_type not in _OPTIMIZERS:
        raise ValueError(f"--optimizer {config.optimizer_type}: one of {', '.join(_OPTIMIZERS)}")
    return _OPTIMIZERS[config.optimizer_type](config, buffer)


def get_optimizer_param_scheduler(config: AllConfig) -> OptimizerParamScheduler:
    """The schedule of the config, counted in samples."""
    optimizer, training = config.optimizer_config, config.training_config
    batch = config.dataset_config.global_batch_size
    by_samples = training.train_samples is not None
    total = training.train_samples or training.training_iters * batch

    def samples(iterations: int | None, count: int | None) -> int | None:
        return count if by_samples else None if iterations is None else iterations * batch

    decay = samples(optimizer.lr_decay_iters, optimizer.lr_decay_samples) or total
    warm_up: float = samples(optimizer.lr_warmup_iters, optimizer.lr_warmup_samples) or 0
    if optimizer.lr_warmup_fraction is not None:
        warm_up = optimizer.lr_warmup_fraction * decay
    return OptimizerParamScheduler(
        max_lr=optimizer.learning_rate,
        min_lr=optimizer.min_lr,
        init_lr=optimizer.lr_warmup_init,
        lr_warmup_steps=warm_up,
        lr_decay_steps=decay,
        lr_decay_style=optimizer.lr_decay_style,
        start_wd=optimizer.start_weight_decay,
        end_wd=optimizer.end_weight_decay,
        wd_incr_steps=total,
        wd_incr_style=optimizer.weight_decay_incr_style,
        wsd_decay_steps=samples(optimizer.lr_wsd_decay_iters, optimizer.lr_wsd_decay_samples),
        lr_wsd_decay_style=optimizer.lr_wsd_decay_style,
    )
