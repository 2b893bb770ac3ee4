"""Checks that a model that was read has the parameters of the network that its settings describe, and that a written
one is the one that was read: the settings of its network, and the bits of its tensors, rows of padding aside."""

from collections.abc import Iterator, Mapping
from typing import Any

from parallel_core.blocks import model_chunks
from parallel_core.checkpoint import networks
from parallel_core.checkpoint.convert.model import Model, is_table
from parallel_core.checkpoint.lazy import equal_bits
from parallel_core.config.serialise import config_of, get

MOST = 8
"""The most problems that an error lists."""

_COUNTS = ("model_config.num_layers", "moe_config.num_experts")


def check_parameters(model: Model, source: object) -> None:
    """Raise ValueError if parameters are missing, have another shape, or are none of the network's: with a line for
    each, in alphabetical order the first MOST lines, and the number of the others. source: the text before each line,
    as the path that was read."""
    problems = sorted(_problems(model))
    if problems:
        more = [f"and {len(problems) - MOST} more"] if len(problems) > MOST else []
        raise ValueError("\n".join(f"{source}: {line}" for line in (*problems[:MOST], *more)))


def check_counts(settings: Mapping[str, Any], parameters: int) -> None:
    """Raise ValueError if the settings have more layers or experts than `parameters`, the number of parameter tensors
    in the source: to describe the network of such settings could take any time."""
    for path in _COUNTS:
        count = get(settings, path)
        if isinstance(count, int) and count > parameters:
            raise ValueError(f"its settings have {path} {count}, its files {parameters} parameters")


def _problems(model: Model) -> Iterator[str]:
    needed, found = _needed(model), {name: tensor.shape for name, tensor in model.weights.items()}
    for name in needed.keys() - found.keys():
        yield f"{name}: missing, the network of its settings has one of {list(needed[name])}"
    for name in found.keys() - needed.keys():
        yield f"{name}: the network of its settings has no such parameter"
    for name in found.keys() & needed.keys():
        if found[name] != needed[name]:
            yield f"{name}: {list(found[name])}, by its settings it should be {list(needed[name])}"


def _needed(model: Model) -> dict[str, tuple[int, ...]]:
    """Name -> global shape of the network's parameters, and of tensors that are saved with them without being
    trained."""
    chunks = model_chunks(config_of(model.settings).model_config)
    found = (specs for chunk in chunks for specs in (chunk.parameters(), chunk.untrained()))
    return {name: spec.shard.shape for specs in found for name, spec in specs.items()}


def differences(written: Model, found: Model, *, states: bool) -> list[str]:
    """Sentences about the settings of the network and the tensors in which two models differ; tables of ids
    (`is_table`) are compared without rows of padding. states: also the optimizer's states are compared."""
    return list(_differences(written, found, states))


def _differences(written: Model, found: Model, states: bool) -> Iterator[str]:
    configs = [config_of(model.settings) for model in (written, found)]
    for path, _, then, now in networks.differences(*configs):
        yield f"{path}: {then} became {now}"
    before = dict(written.all_tensors() if states else written.weights.items())
    after = dict(found.all_tensors() if states else found.weights.items())
    for name in before.keys() ^ after.keys():
        yield f"{name}: only in the {'source' if name in before else 'target'}"
    ids = written.unpadded_vocab_size
    for name in before.keys() & after.keys():
        one, other = before[name], after[name]
        if is_table(name):
            one, other = (tensor.with_length(min(ids, tensor.shape[0])) for tensor in (one, other))
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            yield f"{name}: {list(one.shape)} {one.dtype} became {list(other.shape)} {other.dtype}"
        elif not equal_bits(one.read(), other.read()):
            yield f"{name}: its values changed"
