"""A rank's optimizer in a legacy file: states by number through the parameter groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from parallel_core.checkpoint.convert.megatron.cuts import BUFFERS
from parallel_core.checkpoint.convert.megatron.optimizer import SCALER_TRACKERS, is_decayed, is_of_expert
from parallel_core.checkpoint.convert.model import Position
from parallel_core.checkpoint.lazy import LazyTensor, of_array
from parallel_core.optimizer import MAIN_PARAM

_USUAL: dict[str, Any] = {"betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}


class Entry(NamedTuple):
    """A parameter of a rank."""

    name: str
    """With local numbers."""
    weight: LazyTensor
    states: Mapping[str, LazyTensor]


def optimizer_of(entries: Sequence[Entry], position: Position) -> Any:
    """What a file keeps under "optimizer", of a rank's parameters in the model's order; experts have their own."""
    parts = []
    for expert in (False, True):
        own = [e for e in entries if is_of_expert(e.name) == expert and not BUFFERS.fullmatch(e.name)]
        if own:
            parts.append(_one(own, expert, position))
    return parts[0] if len(parts) == 1 else parts


def _one(entries: Sequence[Entry], expert: bool, position: Position) -> dict[str, Any]:
    groups = [[e for e in entries if is_decayed(e.name, e.weight) == decayed] for decayed in (True, False)]
    members = [(decays, group) for decays, group in zip((1.0, 0.0), groups, strict=True) if group]
    numbered = [entry for _, group in members for entry in group]
    step = of_array(np.array(position.optimizer_steps, np.float32))
    state = {
        number: {"step": step, **{name: tensor for name, tensor in entry.states.items() if name != MAIN_PARAM}}
        for number, entry in enumerate(numbered)
    }
    param_groups, first = [], 0
    for decays, group in members:
        param_groups.append(_group(decays, expert, range(first, first + len(group)), position))
        first += len(group)
    inner = {"state": state, "param_groups": param_groups}
    if not any(MAIN_PARAM in entry.states for entry in numbered):
        return inner
    main = [[e.states[MAIN_PARAM] for e in group] for _, group in members]
    return {"optimizer": inner, "fp32_from_fp16_params": main, **_scaler(position)}


def _scaler(position: Position) -> dict[str, Any]:
    """A dynamic loss scaler's state; other kinds have none that Megatron knows."""
    state = position.loss_scaler
    if state is None or state["kind"] != "dynamic":
        return {}
    scale = of_array(np.array([state["scale"]], np.float32))
    return {"grad_scaler": {"scale": scale, **{name: state[name] for name in SCALER_TRACKERS}}}


def _group(decays: float, expert: bool, params: range, position: Position) -> dict[str, Any]:
    """A parameter group; the rates of the next step are the scheduler's."""
    given = _USUAL | position.hyperparameters
    rate = position.scheduler.get("max_lr", 0.0)
    return {
        "wd_mult": decays,
        "lr_mult": 1.0,
        "is_expert_parallel": expert,
        "is_decoupled_lr": False,
        "default_config": True,
        "max_lr": rate,
        "min_lr": position.scheduler.get("min_lr", 0.0),
        "lr": rate,
        "betas": tuple(given["betas"]),
        "eps": given["eps"],
        "weight_decay": given["weight_decay"] * decays,
        "step": position.optimizer_steps,
        "params": list(params),
    }
