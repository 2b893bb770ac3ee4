"""A model's parameters and optimizer states as whole arrays, to compare layouts by. All ranks of a job call these
functions."""

import hashlib
from collections.abc import Mapping

import numpy as np

Arrays = Mapping[str, np.ndarray]
"""Global name -> whole array."""


def gather_copies(model, of=None) -> Arrays | None:
    """Copies of every weight, or of `of(weight)`, as whole arrays on rank 0; None on others. The next step does not
    change them."""
    from pynative.checkpointing import gather_weights

    gathered = gather_weights(model) if of is None else gather_weights(model, of=of)
    return gathered and {name: values.copy() for name, values in gathered.items()}


def gather_optimizer_state(state) -> Arrays | None:
    """The optimizer's states as whole arrays by "<state>.<name>" on rank 0; None on others."""
    from parallel_core.checkpoint.writer import writers
    from pynative import parallel_state
    from pynative.checkpointing.local_tensors import written_state
    from pynative.checkpointing.weights import gather_shards

    optimizer = state.step_cell.optimizer
    sources = writers(parallel_state.get_topology(), sharded=optimizer.buffers.is_sharded)
    written = {name: (place, values.read()) for name, (place, values) in written_state(optimizer).items()}
    gathered = gather_shards(written, sources)
    if state.config.model_config.params_dtype == "float32":
        return gathered
    # Parameters of several types: a float32 one is its own float32 copy.
    weights = gather_copies(state.model)
    return gathered and {f"main_param.{name}": values for name, values in weights.items()} | gathered


def digests(state) -> dict[str, str]:
    """A digest of each shard that this rank holds, and of the part of its state, by name and by what it covers.

    Ranks that have an entry in common hold replicas, which must be the same to the bit.
    """
    from pynative.memory.arrays import array_of

    found = {}

    def note(what: str, part, *tensors) -> None:
        digest = hashlib.blake2b(digest_size=8)
        for tensor in tensors:
            digest.update(array_of(tensor).tobytes())
        found[f"{what}{part.spec.name} {[(box.start, box.shape) for box in part.boxes]}"] = digest.hexdigest()

    for entry, parameter in state.step_cell.buffers.entries:
        parameter.meta.fetch()
        note("", entry.place, parameter)
    for _, stretch, views in state.step_cell.optimizer.states_of_parameters():
        note("state of ", stretch.place, *views.values())
    return found
