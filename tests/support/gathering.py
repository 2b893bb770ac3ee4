"""A model's parameters and its optimizer's state out of a job, to compare layouts by. All ranks call these."""

import hashlib
from collections.abc import Mapping

import numpy as np

Arrays = Mapping[str, np.ndarray]
"""Whole arrays by global name."""


def gather_copies(model, of=None) -> Arrays | None:
    """Every weight, or what `of` gives for it, whole, on rank 0; copies, which the next step leaves alone."""
    from pynative.checkpointing import gather_weights

    gathered = gather_weights(model) if of is None else gather_weights(model, of=of)
    return gathered and {name: values.copy() for name, values in gathered.items()}


def gather_optimizer_state(state) -> Arrays | None:
    """The optimizer's state by "<state>.<name>", whole, on rank 0."""
    optimizer = state.step_cell.optimizer
    states = {id(parameter): views for parameter, views in optimizer.states_of_parameters()}
    whole: dict[str, np.ndarray] = {}
    is_16_bit = state.config.model_config.params_dtype != "float32"
    for kind in (*optimizer.moment_names, *(("main_param",) if is_16_bit else ())):  # A stage may have no parameters.
        # Parameters of several types: a float32 one is its own float32 copy.
        of = lambda parameter, kind=kind: states[id(parameter)].get(kind, parameter)  # noqa: E731
        gathered = gather_copies(state.model, of=of)
        whole |= {f"{kind}.{name}": values for name, values in (gathered or {}).items()}
    return whole or None


def digests(state) -> dict[str, str]:
    """A digest of each shard that this rank holds and of its state, by name and by what it covers.

    Ranks that have an entry in common hold replicas, which must be the same to the bit.
    """
    from parallel_core.sharding import place
    from pynative import parallel_state

    coordinates, found = parallel_state.get_coordinates(), {}
    for parameter, views in state.step_cell.optimizer.states_of_parameters():
        part = place(parameter.meta.spec, coordinates)
        digest = hashlib.blake2b(parameter.asnumpy().tobytes(), digest_size=8)
        for view in views.values():
            digest.update(view.asnumpy().tobytes())
        found[f"{part.spec.name} {[(box.start, box.shape) for box in part.boxes]}"] = digest.hexdigest()
    return found
