"""Whether a model that was read has the parameters of the network that its settings describe."""

from __future__ import annotations

from collections.abc import Iterator

from parallel_core.blocks import model_chunks
from parallel_core.checkpoint.convert.model import Model
from parallel_core.config.serialise import config_of, get

MOST = 8
"""Problems that are worth reading."""

_COUNTS = ("model_config.num_layers", "moe_config.num_experts")
_ROUTER, _EXPERT_BIAS = ".router.weight", ".router.expert_bias"


def check_parameters(model: Model, source: object) -> None:
    """Raises ValueError naming parameters that are missing, of another shape, or of no layer of the network."""
    problems = sorted(_problems(model))
    if problems:
        more = [f"and {len(problems) - MOST} more"] if len(problems) > MOST else []
        raise ValueError("\n".join(f"{source}: {line}" for line in (*problems[:MOST], *more)))


def check_counts(model: Model, source: object) -> None:
    """Raises ValueError for more layers or experts than parameters: such a network is not even described."""
    for path in _COUNTS:
        count = get(model.settings, path)
        if isinstance(count, int) and count > len(model.weights):
            raise ValueError(f"{source}: its settings have {path} {count}, its files {len(model.weights)} parameters")


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
    """Shapes of the network's parameters, and of what a router adds to its scores, which is none."""
    chunks = model_chunks(config_of(model.settings).model_config)
    shapes = {name: spec.shard.shape for chunk in chunks for name, spec in chunk.parameters().items()}
    routers = [name for name in shapes if name.endswith(_ROUTER)]
    if get(model.settings, "moe_config.moe_router_enable_expert_bias"):
        shapes |= {name.removesuffix(_ROUTER) + _EXPERT_BIAS: shapes[name][:1] for name in routers}
    return shapes
