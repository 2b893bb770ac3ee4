"""--loss-spike-action rollback: a run goes back to its last checkpoint, and on with the data behind the spike."""

from pathlib import Path

from pynative import parallel_state
from pynative.checkpointing.load import roll_back
from pynative.checkpointing.state import named
from pynative.startup.log import warn
from pynative.training.callbacks.base import Callback, TrainingState


class RollbackCallback(Callback):
    """Restores the latest checkpoint in `directory` after a spike, whose update was not made: weights, optimizer,
    schedule, iteration and the callbacks' states that it has. Samples count on: data go on behind the spike's
    (Chowdhery et al., "PaLM", 2022, 5.1). Before the first checkpoint nothing is restored. Raises as `roll_back`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def on_step_end(self, state: TrainingState) -> None:
        if not state.result.spike:
            return
        iteration = state.iteration
        for callback in state.callbacks:
            callback.before_change(state)
        found = roll_back(self.directory, state)
        if found is None:
            said = f"{self.directory} has no checkpoint yet: the update is skipped, nothing else"
        else:
            present = named(state.callbacks)
            for name, kept in state.callback_states.items():
                if name in present:
                    present[name].load_state_dict(kept)
            said = f"went back to {found}, step {state.iteration}; data go on behind sample {state.consumed_samples}"
        if parallel_state.get_global_rank() == 0:
            warn(f"iteration {iteration}: {state.result.spike}: {said} (--loss-spike-action rollback)")
