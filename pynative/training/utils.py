"""Functions that a training script calls itself: device and groups of ranks, seeds, groups of parameters, training or
evaluation, a rank's part of a batch."""

import sys
from collections.abc import Iterable
from typing import Any

import numpy as np
from mindspore import Parameter, nn

from parallel_core.config import OptimizerConfig, ParallelConfig
from parallel_core.optimizer import is_decayed
from pynative import collectives, parallel_state
from pynative.collectives import failure
from pynative.context_parallel.batch import get_batch_on_this_cp_rank
from pynative.startup import device, whereabouts
from pynative.startup.log import log, warn
from pynative.tensor_parallel.data import get_batch_on_this_tp_rank
from pynative.tensor_parallel.random import set_rng_seed

__all__ = [
    "get_batch_on_this_cp_rank",
    "get_batch_on_this_tp_rank",
    "set_parallel_context",
    "set_seed",
    "set_training",
    "set_weight_decay",
]


def set_parallel_context(parallel_config: ParallelConfig) -> None:
    """Prepare the device, connect the processes that the launcher started, and lay the rank grid over them.

    After this a rank with an uncaught error reports it and ends, on CPUs the others with it (`collectives.failure`);
    in an interactive session the process stays. On a CPU msrun's scheduler process, which has nothing to do there,
    exits here. Raises, among others, ValueError if the launcher started another number of processes than the
    configuration's, if script and flag contradict each other about the device (`device.choose`), or if this host cannot
    use it (`device.check_available`); RuntimeError if groups are laid already.
    """
    config = parallel_config
    target, choice_notice = device.choose(config.device_target)
    device.check_available(target)
    config.found_device = target
    transport = config.collectives or device.DEFAULT_COLLECTIVES[target]
    if collectives.is_scheduler() and target == "CPU":
        sys.exit(0)
    device.initialize(target, config.kernels, config.threads, config.world_size, config.fused)
    backend = collectives.connect(transport, timeout_minutes=config.distributed_timeout_minutes)
    # the number of ranks on this host, which share its cores, is known only now
    if backend.local_size < config.world_size:
        device.initialize(target, config.kernels, config.threads, backend.local_size, config.fused)
    whereabouts.watch(backend)
    if not _has_prompt():
        sys.excepthook = lambda kind, error, trace: failure.end(backend, error)
    if backend.world_size != config.world_size:
        raise ValueError(
            f"the configuration is for {config.world_size} processes, the launcher started {backend.world_size}: start "
            f"{config.world_size}, or let the launched processes build the configuration"
        )
    parallel_state.initialize_from_config(config, backend)
    notices = (
        (choice_notice, log),
        (device.engine_notice(), log),
        (device.fused_notice(target, config.fused), log),
        (device.blas_notice(), warn),
    )
    for notice, say in notices:
        if notice and backend.rank == 0:
            say(notice)


def _has_prompt() -> bool:
    """Whether this process is interactive: Python's own prompt, IPython's, or `python -i` after the script."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive)


def set_seed(seed: int) -> None:
    """Seed dropout masks and named random streams, forgetting streams that were added, and numpy's own generator for
    the script's use. Initial values follow the configuration's seed alone (`get_model`). Raises ValueError for a seed
    that numpy does not take: below 0 or above 2^32 - 1."""
    set_rng_seed(seed)
    np.random.seed(seed)


def set_weight_decay(params: Iterable[Parameter], optimizer_config: OptimizerConfig) -> list[dict[str, Any]]:
    """The parameters of a model of `get_model` in two groups, decayed and not, each {"params", "weight_decay"}, as
    `get_optimizer` takes them; a group without parameters is left out.

    The optimizer itself asks each parameter whether it decays; the groups only show it.
    """
    groups: dict[bool, list[Parameter]] = {True: [], False: []}
    for parameter in params:
        groups[is_decayed(parameter.meta.spec, optimizer_config)].append(parameter)
    decay = optimizer_config.weight_decay
    return [{"params": group, "weight_decay": decay if decays else 0.0} for decays, group in groups.items() if group]


def set_training(model: nn.Cell, train: bool) -> None:
    """Set the model to training, or with train False to evaluation, by MindSpore's `set_train`, which visits every
    cell; do nothing if the outermost cell is in that mode already."""
    if model.training is not train:
        model.set_train(train)
