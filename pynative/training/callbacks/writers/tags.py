"""The curves of a step by Megatron's tags (megatron/training/training.py, `training_log`, of Megatron-LM 0.16.1)."""

import re
from collections.abc import Mapping
from typing import Any

from parallel_core.config import AllConfig
from parallel_core.numerics.dtypes import Array
from parallel_core.step_figures import figures_of, logged
from pynative.training.callbacks.base import TrainingState

LOSS = "lm loss"


def points_of_step(state: TrainingState) -> dict[str, float]:
    """Curves over steps and over samples. As in Megatron rate and scale are those after the step; a step that was
    skipped has no norm."""
    config, result, metrics = state.config, state.result, state.metrics
    scaler = state.step_cell.loss_scaler
    points = {
        "learning-rate": state.step_cell.scheduler.rates().learning_rate,
        "batch-size": float(result.samples),
        LOSS: result.loss,
    }
    if config.training_config.log.log_loss_scale_to_tensorboard:
        points["loss-scale"] = 1.0 if scaler is None else scaler.scale
    if config.training_config.log.log_world_size_to_tensorboard:
        points["world-size"] = float(config.parallel_config.world_size)
    if not result.skipped:
        points["grad-norm"] = result.gradient_norm
        points |= {"num-zeros": metrics["num_zeros"]} if "num_zeros" in metrics else {}
    return points | ({"params-norm": metrics["params_norm"]} if "params_norm" in metrics else {})


def points_of_layers(config: AllConfig, figures: Mapping[str, Array]) -> dict[str, float]:
    """Curves of what layers report, over steps alone: means, and with --moe-per-layer-logging each layer's, from 0."""
    model = config.model_config
    points = {_megatrons(name): value for name, value in logged(model, figures).items()}
    if model.moe_config.monitors.moe_per_layer_logging:
        for figure in figures_of(model):
            if figure.is_loss and figure.layers:
                values: Any = figures[figure.name].tolist()
                points |= {f"moe/{figure.name}_layer_{layer}": value for layer, value in enumerate(values)}
    return points


def _megatrons(name: str) -> str:
    """`mtp_1_loss` is `mtp_1 loss` there."""
    return re.sub(r"^(mtp_\d+)_loss$", r"\1 loss", name)


def points_of_evaluation(loss: float, perplexity: float | None) -> dict[str, float]:
    """Curves over steps and over samples."""
    points = {f"{LOSS} validation": loss}
    return points | ({} if perplexity is None else {f"{LOSS} validation ppl": perplexity})
