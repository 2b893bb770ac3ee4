"""The choice of the experts that every rank has copies of."""

from __future__ import annotations

from typing import Any

from parallel_core.config.moe import MoEConfig
from parallel_core.hot_experts import hottest, is_revised
from parallel_core.step_figures import TOKENS_CHOSEN
from pynative.moe.hot_experts import hot_experts_of
from pynative.training.callbacks.base import Callback, TrainingState


class ColdHotExpertMonitor(Callback):
    """Chooses each layer's hot experts anew by the tokens that all ranks' routers sent to each in the step.

    Copies hold no state of their own, so that it does not matter whether a checkpoint is written before or after.

    Args:
        moe_config: how many are hot, and how often they are chosen.
        save_checkpoint_steps: they are chosen at its multiples, too; none or below 1: no checkpoints.
        hidden_size, ffn_hidden_size, expert_parallel, model_parallel: those of the model, which knows them itself.
    """

    reads_parameters = False

    def __init__(
        self,
        moe_config: MoEConfig,
        hidden_size: int | None = None,
        ffn_hidden_size: int | None = None,
        expert_parallel: int | None = None,
        model_parallel: int | None = None,
        save_checkpoint_steps: int | None = None,
    ) -> None:
        self._update_step, self._save_interval = moe_config.hot_expert_update_step, save_checkpoint_steps
        self._count = moe_config.hot_expert_num
        self._hot: dict[str, list[int]] = {}
        """Of all stages' layers, by their numbers as text: what was chosen so far."""

    def on_train_begin(self, state: TrainingState) -> None:
        self._tell(state)

    def on_step_end(self, state: TrainingState) -> None:
        if is_revised(state.iteration, self._update_step, self._save_interval):
            tokens = state.result.figures[TOKENS_CHOSEN]
            self._hot = {str(number): list(hottest(row, self._count)) for number, row in enumerate(tokens, 1)}
            self._tell(state)

    def state_dict(self) -> dict[str, Any]:
        return {"hot": self._hot}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._hot = {number: hot for number, hot in state["hot"].items() if len(hot) == self._count}

    def _tell(self, state: TrainingState) -> None:
        for layer in hot_experts_of(state.model):
            layer.hot = tuple(self._hot.get(str(layer.layer_number), layer.hot))
