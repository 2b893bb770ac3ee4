"""--loss-spike-action rollback: a run goes back to its last checkpoint, and on with the data behind the spike."""

from pynative import parallel_state
from pynative.checkpointing.load import roll_back
from pynative.checkpointing.state import named
from pynative.startup.log import warn
from pynative.training.callbacks.base import Callback, TrainingState
from pynative.training.callbacks.checkpoint import CheckpointCallback


class RollbackCallback(Callback):
    """After a step that is a spike, and whose update was not made, restores the latest checkpoint in the directory of
    `saving`: weights, optimizer, schedule, iteration and callbacks' states; one that is under way is finished first.
    Samples count on, so that none of the spike's comes again (Chowdhery et al., "PaLM", 2022, 5.1). Without a
    checkpoint there nothing is restored. Raises ValueError if the latest one is damaged."""

    def __init__(self, saving: CheckpointCallback) -> None:
        self._saving = saving

    def on_step_end(self, state: TrainingState) -> None:
        if not state.result.spike:
            return
        iteration = state.iteration
        for callback in state.callbacks:
            callback.before_change(state)
        self._saving.finish(state)
        found = roll_back(self._saving.directory, state)
        if found is None:
            said = f"{self._saving.directory} has no checkpoint yet: the update is skipped, nothing else"
        else:
            present = named(state.callbacks)
            for name, kept in state.callback_states.items():
                if name in present:
                    present[name].load_state_dict(kept)
            said = f"went back to {found}, step {state.iteration}; data go on behind sample {state.consumed_samples}"
        if parallel_state.get_global_rank() == 0:
            warn(f"iteration {iteration}: {state.result.spike}: {said} (--loss-spike-action rollback)")
