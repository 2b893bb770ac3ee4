"""Whole arrays under Megatron's global names, into a model and out of it."""

import json
from collections.abc import Callable, Mapping

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn

from parallel_core.sharding import ShardSpec
from pynative import parallel_state
from pynative.checkpointing.agreement import agree
from pynative.collectives import Group
from pynative.parameter import name_parameters, write_parameter


def load_weights(model: nn.Cell, arrays_by_global_name: Mapping[str, np.ndarray]) -> None:
    """Fill a model from whole arrays, the same on all ranks; each rank takes its stage's names and its shards.

    Raises ValueError, before anything is written, that lists all names of only one side and all shapes that differ.
    """
    arrays = arrays_by_global_name
    parameters = name_parameters(model)
    found = [_problem(parameter.shard, arrays) for parameter in parameters]
    taken = {parameter.shard.name for parameter in parameters}
    agree(list(arrays), taken, [problem for problem in found if problem], "the table of weights")
    rank = parallel_state.get_tensor_model_parallel_rank()
    size = parallel_state.get_tensor_model_parallel_world_size()
    for parameter in parameters:
        write_parameter(parameter, parameter.shard.cut(arrays[parameter.shard.name], rank, size))


def _problem(spec: ShardSpec, arrays: Mapping[str, np.ndarray]) -> str | None:
    if spec.name not in arrays:
        return f"{spec.name}: the model has it, the table does not"
    if arrays[spec.name].shape != spec.shape:
        return f"{spec.name}: {list(arrays[spec.name].shape)} in the table, {list(spec.shape)} in the model"
    return None


def _value(parameter: Parameter) -> Tensor:
    return parameter


def gather_weights(model: nn.Cell, of: Callable[[Parameter], Tensor] = _value) -> dict[str, np.ndarray] | None:
    """Every weight, or what `of` gives for it in its shape, whole, by global name; None except on rank 0.

    All ranks call this. The last stage's copy of a tied embedding is left out.
    """
    tensor_group = parallel_state.get_tensor_model_parallel_group()
    own = {
        parameter.shard.name: _whole(parameter.shard, of(parameter), tensor_group)
        for parameter in name_parameters(model)
        if not parameter.is_shared_copy
    }
    is_first_replica = parallel_state.get_data_parallel_rank(with_context_parallel=True) == 0
    if tensor_group.rank == 0 and is_first_replica:
        return _over_stages(own, parallel_state.get_pipeline_model_parallel_group())
    return None


def _whole(spec: ShardSpec, shard: Tensor, group: Group) -> np.ndarray:
    if spec.axis is None or group.size == 1:
        return shard.asnumpy().copy()
    gathered = group.all_gather(Tensor(shard.asnumpy().reshape(1, -1))).asnumpy()
    return spec.merge([row.reshape(spec.local_shape(group.size)) for row in gathered])


def _over_stages(own: dict[str, np.ndarray], group: Group) -> dict[str, np.ndarray] | None:
    """All stages' arrays at the first."""
    if group.rank > 0:
        _send_text(json.dumps([(name, array.shape, str(array.dtype)) for name, array in own.items()]), group)
        for array in own.values():
            group.send(Tensor(array), 0)
        return None
    everything = dict(own)
    for stage in range(1, group.size):
        for name, shape, dtype in json.loads(_receive_text(group, stage)):
            everything[name] = group.recv(tuple(shape), getattr(ms, dtype), stage).asnumpy()
    return everything


def _send_text(text: str, group: Group) -> None:
    letters = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
    group.send(Tensor(np.array([len(letters)], np.int32)), 0)
    group.send(Tensor(letters), 0)


def _receive_text(group: Group, source: int) -> str:
    length = int(group.recv((1,), ms.int32, source).asnumpy()[0])
    return group.recv((length,), ms.int32, source).asnumpy().astype(np.uint8).tobytes().decode()
