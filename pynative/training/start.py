"""The lines that a run logs at its start, about its model, data and first step."""

from pathlib import Path

import numpy as np
from mindspore import Tensor, nn

from parallel_core.checkpoint.folders import is_first_start
from parallel_core.sharding import is_counted
from parallel_core.start_lines import ParameterCount, start_lines
from pynative import parallel_state
from pynative.parameter import name_parameters, place_of
from pynative.startup.log import log
from pynative.training.callbacks import TrainingState
from pynative.training.planned import is_planned


def say_start(state: TrainingState, loader: str) -> None:
    """Log the lines at a run's start. loader: a description of the script's own training loader, "" if there is none.
    All ranks call this."""
    plan, stage = state.plan, parallel_state.get_pipeline_model_parallel_rank()
    rank, count = parallel_state.get_global_rank(), count_parameters(state.model)
    for line in (
        *start_lines(plan, rank, stage, count, loader, is_planned(plan, state.model)),
        _training_line(state),
    ):
        log(line)


def _training_line(state: TrainingState) -> str:
    training = state.config.training_config
    given = training.checkpoint.load_checkpoint
    loaded = given is not None and not is_first_start(Path(given), training.checkpoint)
    origin = state.resumed_from or (f"the weights of {given}" if loaded else "initial values")
    return f"Training: step {state.iteration + 1} to {training.training_iters}, from {origin}"


def count_parameters(model: nn.Cell) -> ParameterCount:
    """The numbers of parameters, in elements with the padding of shards, of the whole model, of this rank, and of this
    rank's trained ones. All ranks call this."""
    coordinates, whole, own, trained = parallel_state.get_coordinates(), 0, 0, 0
    for parameter in name_parameters(model):
        spec, size = parameter.meta.spec, place_of(parameter).size
        own += size
        trained += size * parameter.requires_grad
        if coordinates.get(spec.replicas, (0, 1))[0] == 0 and is_counted(spec, coordinates):
            whole += size
    shares = parallel_state.get_world_group().all_gather(Tensor(np.array([whole], np.int64)))
    return ParameterCount(int(shares.asnumpy().sum()), own, trained)
