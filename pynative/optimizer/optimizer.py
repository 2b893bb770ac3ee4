"""The construction of an optimizer over a model's parameters."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, overload

from mindspore import Parameter, nn

from parallel_core.config import OptimizerConfig, TrainingConfig
from pynative import parallel_state
from pynative.collectives.numbers import over_group
from pynative.distributed.param_and_grad_buffer import ParamAndGradBuffers
from pynative.optimizer.flat_optimizer import FlatOptimizer
from pynative.parameter import trainable


@overload
def get_optimizer(
    config: OptimizerConfig,
    buffers: ParamAndGradBuffers | TrainingConfig,
    params: Iterable[Parameter | Mapping[str, Any]] | None = None,
    network: nn.Cell | None = None,
    return_instance: Literal[True] = True,
) -> FlatOptimizer: ...


@overload
def get_optimizer(
    config: OptimizerConfig,
    buffers: ParamAndGradBuffers | TrainingConfig,
    params: Iterable[Parameter | Mapping[str, Any]] | None = None,
    network: nn.Cell | None = None,
    *,
    return_instance: Literal[False],
) -> type[FlatOptimizer]: ...


def get_optimizer(
    config: OptimizerConfig,
    buffers: ParamAndGradBuffers | TrainingConfig,
    params: Iterable[Parameter | Mapping[str, Any]] | None = None,
    network: nn.Cell | None = None,
    return_instance: bool = True,
) -> FlatOptimizer | type[FlatOptimizer]:
    """The optimizer that --optimizer names, over a model's buffers.

    Scripts of MindSpeed-Core-MS pass (optimizer_config, training_config, params or network) instead; the buffers are
    then those of these parameters, which `get_model` has named. params may be the groups of `set_weight_decay`, of
    which only the parameters are read. With return_instance False the optimizer's class is returned, and nothing is
    made or checked. Loss scaler and offload of states are those of the training_config; with ready buffers there are
    none. Raises ValueError if a training_config comes with neither params nor network, or if a rule for some parameters
    alone (Muon) finds none in the model; with a training_config also as `ParamAndGradBuffers.of` and `allocate_states`.
    All ranks of a model call this.
    """
    if not return_instance:
        return FlatOptimizer
    grad_scaler = offload = None
    if not isinstance(buffers, ParamAndGradBuffers):
        grad_scaler, offload = buffers.precision.make_loss_scaler(), buffers.offload
        if params is not None:
            parameters = _of_groups(params)
        elif network is not None:
            parameters = trainable(network)
        else:
            raise ValueError("get_optimizer: no parameters; pass params or network, or a model's ParamAndGradBuffers")
        buffers = ParamAndGradBuffers.of(list(parameters), buffers.gradient)
    _check_for_parameters(config, buffers)
    return FlatOptimizer(config, buffers, grad_scaler, offload)


def _check_for_parameters(config: OptimizerConfig, buffers: ParamAndGradBuffers) -> None:
    """Raise ValueError on all ranks if a rule for some parameters alone (Muon) finds none on any of them. All ranks of
    a model call this."""
    rule, *rest = config.update_rules
    if not rest:
        return
    found = any(rule.treats(entry.spec) for entry, _ in buffers.entries)
    if not over_group(found, parallel_state.get_model_parallel_group(), "max"):
        raise ValueError(
            f"--optimizer {rule.name}: it updates {rule.treated}, and the model has none beside embedding and output "
            f"layer; use {rest[0].name}"
        )


def _of_groups(params: Iterable[Parameter | Mapping[str, Any]]) -> Iterator[Parameter]:
    """Yield the parameters of a list that may hold groups {"params": parameters} of them."""
    for entry in params:
        yield from entry["params"] if isinstance(entry, Mapping) else (entry,)
