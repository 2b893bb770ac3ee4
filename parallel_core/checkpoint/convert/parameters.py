"""Whether a model that was read has the parameters of the network that its settings describe."""

from __future__ import annotations

from collections.abc import Iterator

from parallel_core.blocks import model_chunks
from parallel_core.checkpoint.convert.model import Model
from parallel_core.checkpoint.convert.settings import config_of

MOST = 8
"""Problems that are worth reading."""


def check_parameters(model: Model, source: object) -> None:
    """Raises ValueError naming parameters that are missing, of another shape, or of no layer of the network."""
    problems = sorted(_problems(model))
    if problems:
        more = [f"and {len(problems) - MOST} more"] if len(problems) > MOST else []
        raise ValueError("\n".join(f"{source}: {line}" for line in (*problems[:MOST], *more)))


def _problems(model: Model) -> Iterator[str]:
    chunks = model_chunks(config_of(model.settings).model_config)
    needed = {name: spec.shard.shape for chunk in chunks for name, spec in chunk.parameters().items()}
    found = {name: tensor.shape for name, tensor in model.weights.items() if not name.endswith(".expert_bias")}
    for name in needed.keys() - found.keys():
        yield f"{name}: missing, the network of its settings has one of {list(needed[name])}"
    for name in found.keys() - needed.keys():
        yield f"{name}: the network of its settings has no such parameter"
    for name in found.keys() & needed.keys():
        if found[name] != needed[name]:
            yield f"{name}: {list(found[name])}, by its settings it should be {list(needed[name])}"
