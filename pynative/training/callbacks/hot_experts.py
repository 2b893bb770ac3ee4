"""What a checkpoint keeps of the experts that every rank has copies of."""

from typing import Any

from parallel_core.config.moe import MoEConfig
from pynative.moe.hot_experts import HotExpertLayers
from pynative.training.callbacks.base import Callback, TrainingState


class ColdHotExpertMonitor(Callback):
    """Has each layer's hot experts chosen anew before a checkpoint, which keeps the choice.

    At powers of two and multiples of its step the training step itself chooses. Copies hold no state of their own, so
    that it does not matter whether this stands before or after the callback that saves.

    Args:
        save_checkpoint_steps: they are chosen at its multiples; none or below 1: when the run's own checkpoints begin.
        moe_config, hidden_size, ffn_hidden_size, expert_parallel, model_parallel: those of the model, which knows them
            itself.
    """

    reads_parameters = False

    def __init__(
        self,
        moe_config: MoEConfig | None = None,
        hidden_size: int | None = None,
        ffn_hidden_size: int | None = None,
        expert_parallel: int | None = None,
        model_parallel: int | None = None,
        save_checkpoint_steps: int | None = None,
    ) -> None:
        self._save_interval = save_checkpoint_steps or 0
        self._layers: HotExpertLayers | None = None
        self._kept: dict[str, list[int]] = {}

    def on_train_begin(self, state: TrainingState) -> None:
        self._layers = state.step_cell.hot_experts
        self._layers.take({int(number): tuple(hot) for number, hot in self._kept.items()})

    def on_step_end(self, state: TrainingState) -> None:
        if self._save_interval > 0 and state.iteration % self._save_interval == 0:
            state.step_cell.hot_experts.choose()

    def before_save(self, state: TrainingState) -> None:
        state.step_cell.hot_experts.choose()

    def state_dict(self) -> dict[str, Any]:
        chosen = {} if self._layers is None else self._layers.chosen
        return {"hot": {str(number): list(hot) for number, hot in chosen.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._kept = state["hot"]
