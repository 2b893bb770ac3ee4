"""Loss and gradients of a step as a function, for scripts with a loop of their own."""

import inspect
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from mindspore import Parameter, Tensor, nn

from parallel_core.config import AllConfig, ModelConfig, TrainingConfig
from pynative import parallel_state
from pynative.distributed.param_and_grad_buffer import ParamAndGradBuffers
from pynative.moe.expert_bias import ExpertBiases
from pynative.moe.hot_experts import HotExpertLayers
from pynative.parameter import trainable
from pynative.pipeline_parallel.step import GlobalLoss, PipelineStep
from pynative.step_part import StepPart, around
from pynative.step_position import StepPosition, set_step_position
from pynative.training.float8 import DelayedScales
from pynative.training.forward_step import BatchedForwardStep
from pynative.training.train_step import config_of
from pynative.training.utils import set_training

Result = tuple[float, None, tuple[Tensor, ...] | None]


class ForwardBackward:
    """Forwards and backwards of a stage's chunks outside of the training loop; each call counts as an iteration for
    dropout, and one with backwards moves the routers' expert biases, as an update does.

    The gradients are in the model's buffers, which an optimizer over the same chunks shares. Raises ValueError with
    ZeRO stage 2 or 3.
    """

    def __init__(self, model: nn.CellList, config: AllConfig) -> None:
        stage = config.training_config.gradient.zero_stage
        if stage >= 2:
            raise ValueError(
                f"--zero-stage {stage}: a rank keeps its part of the gradients, so a function cannot give all of them; "
                f"train by TrainOneStepCell or pretrain, or use stage 0 or 1"
            )
        self.model, self.config = model, config
        self.buffers = ParamAndGradBuffers.of(trainable(model), config.training_config.gradient)
        self.hot_experts = HotExpertLayers(model, config.model_config.moe_config)
        scales = DelayedScales(model, config.model_config.float8)
        self.parts: tuple[StepPart, ...] = (ExpertBiases(model), self.hot_experts, scales)
        self.pipeline = PipelineStep(model, config)
        self._forward_step, self._calls = BatchedForwardStep(), count()

    @classmethod
    def of(cls, model: nn.CellList, config: AllConfig) -> "ForwardBackward":
        """The ForwardBackward of these chunks and this configuration, which is kept as an attribute of the chunks."""
        kept: ForwardBackward | None = getattr(model, "forward_backward", None)
        if kept is None or kept.config is not config:
            model.forward_backward = kept = cls(model, config)
        return kept

    def __call__(self, data: dict[str, Any], train: bool = True) -> tuple[GlobalLoss, float]:
        """(The global batch's loss, the factor that the reduced gradients in `main_grad` must be multiplied by). data:
        the model's keyword arguments for all of this rank's micro-batches; ValueError for others. train False: forwards
        alone, without gradients."""
        set_training(self.model, train)
        set_step_position(StepPosition(next(self._calls)))
        self.buffers.empty_gradients()
        with around(self.parts, train):
            loss = self.pipeline.run(self._forward_step, iter([data]), train)
        if train:
            self.buffers.reduce_gradients()
            self.buffers.gather_gradients()
            for part in self.parts:
                part.after_step()
                part.after_update(loss.figures)
        return loss, self.pipeline.averaging.gradient_scale(loss.tokens)


def get_forward_backward_func(
    network_with_loss: nn.CellList, params: Sequence[Parameter], training_config: TrainingConfig,
    model_config: ModelConfig,
) -> Callable[..., tuple[float, tuple[Tensor, ...]]]:  # fmt: skip
    """A function (**data) -> (loss, gradients of params), which runs the configuration's schedule over the chunks
    `network_with_loss`, as `get_model` returns them.

    data are the model's keyword arguments for all of this rank's micro-batches. Loss and gradients are the global
    batch's, averaged as a training step does, the same on every replica. Raises ValueError with ZeRO stage 2 or 3, and
    if the two configurations are not sections of one.
    """
    step = ForwardBackward.of(network_with_loss, config_of(training_config, model_config))

    def forward_backward(**data: Any) -> tuple[float, tuple[Tensor, ...]]:
        loss, scale = step(data)
        return loss.mean, tuple(parameter.main_grad * scale for parameter in params)

    return forward_backward


def _pipelining(interleaving: bool) -> Callable[..., Result]:
    """MindSpeed-Core-MS's function of a schedule, with or without interleaving."""

    def forward_backward(
        model: nn.CellList,
        num_microbatches: int,
        seq_length: int,
        micro_batch_size: int,
        *input_data_tuple: Any,
        decoder_seq_length: None = None,
        forward_only: bool = False,
        collect_non_loss_data: bool = False,
        first_val_step: None = None,
        config: AllConfig | ModelConfig | None = None,
        scale_sense: float = 1.0,
        total_tokens_nums: None = None,
        **input_data_dict: Any,
    ) -> Result:
        """(Loss, None for the logits, gradients of the model's trainable parameters times scale_sense).

        Loss and gradients are those of `get_forward_backward_func`; with forward_only the model is in evaluation mode
        (no dropout) and the gradients are None. The data are the model's arguments for all of this rank's
        micro-batches. config: an AllConfig; else the one that `set_parallel_context` was given. The schedule and the
        sizes are the configuration's. Raises ValueError for others, for an argument that has to be None, for
        collect_non_loss_data, and with ZeRO stage 2 or 3.
        """
        whole = config if isinstance(config, AllConfig) else parallel_state.get_config()
        sizes = (num_microbatches, seq_length, micro_batch_size)
        others = (decoder_seq_length, first_val_step, total_tokens_nums, collect_non_loss_data or None)
        _check_call(whole, interleaving, sizes, others)
        names = inspect.signature(model[0].construct).parameters
        data = dict(zip(names, input_data_tuple, strict=False)) | input_data_dict
        loss, scale = ForwardBackward.of(model, whole)(data, not forward_only)
        if forward_only:
            return loss.mean, None, None
        return loss.mean, None, tuple(p.main_grad * (scale * scale_sense) for p in trainable(model))

    return forward_backward


def _check_call(config: AllConfig, interleaving: bool, sizes: tuple[int, int, int], others: tuple[object, ...]) -> None:
    """Raise ValueError if sizes (num_microbatches, seq_length, micro_batch_size) or interleaving differ from the
    configuration, which decides, or one of `others`, which are not available, is not None."""
    data, name = config.dataset_config, "forward_backward_pipelining_with" + ("" if interleaving else "out")
    own = (data.micro_batch_num, config.model_config.seq_length, data.batch_size)
    if sizes != own:
        raise ValueError(
            f"{name}_interleaving: num_microbatches, seq_length, micro_batch_size are {sizes}, the configuration's are "
            f"{own}: pass those"
        )
    if any(other is not None for other in others):
        raise ValueError(
            f"{name}_interleaving: decoder_seq_length, first_val_step, total_tokens_nums and collect_non_loss_data are "
            f"not available; leave them out"
        )
    chunks = config.parallel_config.virtual_pipeline_model_parallel_size or 1
    if (chunks > 1) != interleaving:
        raise ValueError(f"{name}_interleaving: the configuration has {chunks} chunks a stage; call the other one")


forward_backward_pipelining_with_interleaving = _pipelining(interleaving=True)
forward_backward_pipelining_without_interleaving = _pipelining(interleaving=False)
