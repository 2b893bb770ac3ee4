"""An optimizer's states of what this rank owns, as named parts of global arrays, "<state>.<weight>", and their
loading."""

from collections.abc import Iterator
from copy import deepcopy

from mindspore import Tensor

from parallel_core.buffers.stretch import Stretch
from parallel_core.checkpoint.reader import CheckpointReader
from parallel_core.optimizer import MAIN_PARAM
from parallel_core.strictness import Strictness
from pynative.optimizer.flat_optimizer import FlatOptimizer
from pynative.parameter import write
from pynative.startup.log import warn


def optimizer_tensors(optimizer: FlatOptimizer) -> Iterator[tuple[str, Stretch, Tensor]]:
    """Yield ("<state>.<weight>", the stretch of the weight that this rank owns, the vector of the state's values there)
    of every state of every weight of which it owns something."""
    for parameter, stretch, states in optimizer.states_of_parameters():
        for name, memory in states.items():
            yield f"{name}.{parameter.meta.spec.name}", stretch, memory


def optimizer_problems(reader: CheckpointReader, optimizer: FlatOptimizer | None, strictness: Strictness) -> list[str]:
    """Messages that say why an optimizer cannot go on with the state in a checkpoint; an empty list if it can, or if
    the optimizer is None. strictness: whether kinds of states that only the checkpoint has, and states that only the
    optimizer has, are problems; a float32 copy may be missing in any case where the weight is there."""
    if optimizer is None:
        return []
    record, remedy = reader.manifest.optimizer, "load the weights alone by --no-load-optim"
    if record is None:
        return [f"{reader.directory}: was saved without its optimizer; {remedy}"]
    if record.kind != optimizer.config.optimizer_type:
        now = optimizer.config.optimizer_type
        return [f"{reader.directory}: --optimizer was {record.kind}, now it is {now}; {remedy}"]
    if strictness.refuses_unused and (dropped := set(record.state) - set(optimizer.state_names)):
        return [f"{reader.directory}: has the states {', '.join(sorted(dropped))}, this optimizer does not; {remedy}"]
    tensors = optimizer_tensors(optimizer)
    wanted = ((_stored_name(reader, name), stretch.whole.spec) for name, stretch, _ in tensors)
    found = [reader.problem(name, spec) for name, spec in wanted if strictness.refuses_absent or reader.has(name)]
    return [problem for problem in (*found, _scaler_problem(reader, optimizer)) if problem]


def _scaler_problem(reader: CheckpointReader, optimizer: FlatOptimizer) -> str | None:
    """Why the optimizer's loss scaler cannot go on with the stored state, tried with a copy of it; None if it can."""
    kept = reader.manifest.loss_scaler
    if optimizer.grad_scaler is None or kept is None:
        return None
    try:
        deepcopy(optimizer.grad_scaler).load_state_dict(kept)
    except (KeyError, TypeError, ValueError) as error:
        return f"{reader.directory}: its loss scaler's state is not one ({error!r}); --no-load-optim leaves it out"
    return None


def read_optimizer(reader: CheckpointReader, optimizer: FlatOptimizer, strictness: Strictness) -> None:
    """Fill an optimizer's states, step count and, where both have one, loss scaler from a checkpoint in which
    `optimizer_problems` found none. A float32 copy that the checkpoint lacks is read from the weight if that is there;
    any other state that it lacks keeps its values, with a warning if the strictness logs absent names."""
    assert reader.manifest.optimizer is not None
    for name, stretch, memory in optimizer_tensors(optimizer):
        stored = _stored_name(reader, name)
        if reader.has(stored):
            present = stretch.to_array(memory.asnumpy()).copy()
            write(memory, stretch.to_vector(reader.read(stored, stretch.place, out=present)))
        elif strictness.logs_absent:
            warn(f"{name}: the optimizer has it, {reader.directory} does not: it starts anew")
    optimizer.steps = reader.manifest.optimizer.steps
    if optimizer.grad_scaler is not None and reader.manifest.loss_scaler is not None:
        optimizer.grad_scaler.load_state_dict(reader.manifest.loss_scaler)


def _stored_name(reader: CheckpointReader, name: str) -> str:
    """The name under which the checkpoint has a state: for a weight's float32 copy (`MAIN_PARAM`) that it lacks the
    weight's own name, as where that was float32."""
    return name if reader.has(name) else name.removeprefix(f"{MAIN_PARAM}.")
