"""--record: writes what a few steps compute, for `compare` with another run of whatever layout, or with Megatron."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
from mindspore import Tensor, nn

from parallel_core.compare.recorded import key, of_parameters, write_step
from parallel_core.compare.sample import of_activation
from parallel_core.config import AllConfig
from parallel_core.context import SequenceLayout, as_array
from parallel_core.numerics.dtypes import Array
from pynative import parallel_state
from pynative.checkpointing.weights import gather_gradients, gather_weights
from pynative.startup.log import log, warn
from pynative.startup.whereabouts import name_of
from pynative.step_position import get_step_position
from pynative.tape.layer_events import LayerEvents
from pynative.training.callbacks.base import Callback, TrainingState

EMBEDDING = "embedding"
"""The name under which the embedding's result is recorded, with position embeddings or without."""


class RecordCallback(Callback):
    """Records the iterations `first` to `last` - 1, counted from 0, in `folder`: figures, tokens, and samples of
    activations, gradients, weights after each step, and the weights before the first recorded step. Where a file cannot
    be written it warns once, and training goes on. All ranks have this callback."""

    def __init__(self, folder: Path, first: int, last: int) -> None:
        self.folder, self.first, self.last = folder, first, last
        self._arrays: dict[str, Array] | None = None
        self._is_refused = False

    def on_train_begin(self, state: TrainingState) -> None:
        self._cells = _Cells(state.config)
        for number, chunk in enumerate(state.model):
            LayerEvents.of(chunk).on_result(partial(self._note, number))
        self._turn(state)

    def _turn(self, state: TrainingState) -> None:
        """Begin or end recording between two steps; before the first recorded one the weights are taken."""
        is_due = self.first <= state.iteration < min(self.last, state.config.training_config.training_iters)
        is_first = is_due and self._arrays is None
        self._arrays = {} if is_due else None
        if is_first and self._arrays is not None:
            self._arrays |= of_parameters("before", gather_weights(state.model) or {})

    def _note(self, chunk: int, cell: nn.Cell, result: object) -> None:
        if self._arrays is not None:
            self._arrays |= self._cells.noted(chunk, cell, result, self._arrays)

    def on_gradients(self, state: TrainingState, gradient_scale: float) -> None:
        if self._arrays is not None:
            gradients = gather_gradients(state.step_cell.buffers) or {}
            self._arrays |= of_parameters("gradient", {name: g * gradient_scale for name, g in gradients.items()})

    def on_step_end(self, state: TrainingState) -> None:
        if self._arrays is not None:
            self._arrays |= of_parameters("after", gather_weights(state.model) or {})
            self._arrays |= {key("tokens", number): x for number, x in _tokens(state).items()}
            self._write(state, self._arrays)
        self._turn(state)

    def _write(self, state: TrainingState, arrays: Mapping[str, Array]) -> None:
        rank, result = parallel_state.get_global_rank(), state.result
        figures = {
            "loss": result.loss,
            "grad_norm": result.gradient_norm,
            "lr": result.learning_rate,
            "weight_decay": result.weight_decay,
            "loss_scale": result.loss_scale,
            "skipped": result.skipped,
        }
        dtype = state.config.model_config.compute_dtype
        try:
            write_step(self.folder, state.iteration, rank, arrays, figures if rank == 0 else None, str(dtype))
            if rank == 0:
                log(f"Recorded step {state.iteration} in {self.folder}")
        except OSError as error:  # a failed record does not end the training
            if not self._is_refused:
                warn(f"No record: {self.folder}: {error.strerror}")
            self._is_refused = True


class _Cells:
    """Results of cells as arrays, by keys that no layout changes."""

    def __init__(self, config: AllConfig) -> None:
        parallel = config.parallel_config
        self._layout, self._placement = SequenceLayout.of(parallel), parallel.placement
        self._ranks = parallel_state.get_context_parallel_rank(), parallel_state.get_tensor_model_parallel_rank()
        self._hidden = config.model_config.hidden_size
        self._stage = parallel_state.get_pipeline_model_parallel_rank()

    def noted(self, chunk: int, cell: nn.Cell, result: object, known: Mapping[str, Array]) -> dict[str, Array]:
        """{key: the sample that is kept of a cell's hidden states, float32 [s', b, h'], key: its positions [s']}. Empty
        for a second run of a cell in a micro-batch (`known` has it), for a cell without a name, and for a result, or
        first element of a tuple, that has not the shape [s, b, h] of hidden states."""
        x = result[0] if isinstance(result, tuple) else result
        name = EMBEDDING if name_of(cell).startswith(f"{EMBEDDING}.") else name_of(cell)
        if not isinstance(x, Tensor) or x.ndim != 3 or x.shape[-1] != self._hidden or not name:
            return {}
        micro_batch, virtual = get_step_position().micro_batch, self._placement.virtual(self._stage, chunk)
        prefix = f"activation|{micro_batch}|{virtual:04d}."
        if any(one.startswith(prefix) and one.endswith(f"|{name}") for one in known):
            return {}
        words = micro_batch, f"{virtual:04d}.{sum(one.startswith(prefix) for one in known):04d}", name
        positions = as_array(self._layout.positions(x.shape[0], *self._ranks))
        values = np.asarray(x.float().asnumpy())
        kept, places = of_activation(values, positions, x.shape[0] * self._layout.size)
        return {key("activation", *words): kept, key("positions", *words): places}


def _tokens(state: TrainingState) -> dict[int, Array]:
    """The tokens [b, s] of the step by number of the micro-batch in the global batch, for this replica's micro-batches;
    empty on a rank that does not read them."""
    drawn = state.step_cell.forward_step.drawn_tokens()
    replicas, own = parallel_state.get_data_parallel_world_size(), parallel_state.get_data_parallel_rank()
    return {number * replicas + own: tokens for number, tokens in enumerate(drawn)}
