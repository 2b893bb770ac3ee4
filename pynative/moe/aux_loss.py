"""Auxiliary losses on a router's logits: of balance between experts or groups of them, and of the logits' size
(z-loss).

They are attached to the logits (see `step_figures`). The load of an expert counts the tokens that have it among their k
best normalized scores, that of a group of experts its choices, or the tokens sent to it. Loads are those of a whole
micro-batch, or of whole sequences, over the ranks that share them, or (global_aux_loss) of all replicas, as the mean
over the step's micro-batches so far; each rank's part of the gradient is that of its own tokens. s sequence, b batch, E
experts.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from mindspore import Tensor

from parallel_core import step_figures
from parallel_core.config import ModelConfig
from parallel_core.config.moe import BALANCING_LOSSES
from parallel_core.moe import routing
from parallel_core.moe.routing import RoutingRule, Tokens
from parallel_core.numerics.averaging import MicroBatchWeight
from parallel_core.numerics.dtypes import Array
from pynative import kernels, parallel_state
from pynative.collectives import Group
from pynative.step_figures import StepFigures, current, seed
from pynative.tape import autograd


class _Loss(NamedTuple):
    """A balancing loss: coefficient * the sum over tokens and experts of normalized scores * weights."""

    name: str
    coefficient: float
    weights: Array
    """[b, E], or [1, E] for all sequences."""
    replicas: int = 1
    """The number of data-parallel replicas whose shares add up to the loss; 1: each replica has a loss of its own."""

    def value(self, sums: Tensor) -> float:
        """This rank's share of the loss without its coefficient, times `replicas`. sums: the normalized scores of this
        rank's tokens summed over each sequence, [b, E]."""
        return float((sums.asnumpy() * self.weights).sum()) * self.replicas


class RouterLosses:
    """The auxiliary losses of one layer's router.

    Args:
        layer_number: global, from 1.
        sharing: the kind of group whose ranks have other tokens of the same micro-batch, "cp" or "tp-cp".
        copies: the number of ranks that route the same tokens.
    """

    def __init__(self, config: ModelConfig, layer_number: int, sharing: str, copies: int) -> None:
        self.config, self.layer_number, self.copies = config.moe_config, layer_number, copies
        self.rule = RoutingRule.of(config.moe_config)
        self.sharing = sharing
        self.are_on = any(True for _ in step_figures.router_losses(config))

    def __call__(self, logits: Tensor, experts: Tensor | None = None) -> Tensor:
        """The logits [s, b, E] with the losses attached, and the figures reported; unchanged if no loss is on or the
        tape is off. experts: the chosen ones [s b, k], which only the losses of groups need."""
        if not (self.are_on and autograd.is_recording()):
            return logits
        group, figures = parallel_state.get_group(self.sharing), current()
        sizes = bool(self.config.moe_z_loss_coeff)
        sums, of_sequences, squares = kernels.router_statistics(logits, self.rule, sizes)
        load = of_sequences.asnumpy()
        tokens = logits.shape[0] * logits.shape[1]
        of_all = tokens * group.size
        losses = self._of_load(load, of_all, group) + self._of_groups(logits, experts, of_all, group)
        losses += self._of_all_replicas(load, tokens, figures)
        start = seed(MicroBatchWeight(of_all))
        self._report(figures, losses, sums, lambda: routing.z_weight(float(squares.asnumpy()), of_all))
        weighted = [loss.weights * (loss.coefficient * start) for loss in losses]
        weights = _tensor(np.sum(np.broadcast_arrays(*weighted), axis=0)) if weighted else None
        z_weight = routing.z_weight((self.config.moe_z_loss_coeff or 0.0) * start, of_all)
        return kernels.with_router_losses(logits, weights, z_weight, self.rule)

    def _of_load(self, load: Array, of_all: int, group: Group) -> list[_Loss]:
        """The balancing losses of a micro-batch's load, and of each sequence's. load: [b, E], of this rank's tokens;
        of_all: tokens of the whole micro-batch."""
        kinds = {kind: c for kind, c in self.config.balancing_losses.items() if kind != "global_aux_loss"}
        if not kinds:
            return []
        whole, batch = _sum(load, group), len(load)
        loads = {
            "aux_loss": (whole.sum(axis=0, keepdims=True), Tokens(of_all)),
            "seq_aux_loss": (whole, Tokens(of_all // batch, batch)),
        }
        return [
            _Loss(BALANCING_LOSSES[kind], coefficient, routing.balance_weights(*loads[kind], self.rule.topk))
            for kind, coefficient in kinds.items()
        ]

    def _of_groups(self, logits: Tensor, experts: Tensor | None, of_all: int, group: Group) -> list[_Loss]:
        """The device-level and communication balancing losses, of the loads of groups of experts: choices, and tokens
        that are sent there (DeepSeek-V2, section 2.2.3)."""
        moe, number, batch = self.config, logits.shape[-1], logits.shape[1]
        groups, chosen_groups = self.rule.groups, self.rule.group_topk or self.rule.groups
        found = []
        for name, coefficient, is_sent, share in (
            (step_figures.DEVICE_LOSS, moe.moe_device_level_aux_loss_coeff, False, self.rule.topk / groups),
            (step_figures.COMMUNICATION_LOSS, moe.moe_comm_aux_loss_coeff, True, chosen_groups / groups),
        ):
            if coefficient and experts is not None:
                load = kernels.load_of_experts(experts, batch, number, groups if is_sent else None).asnumpy()
                load = _sum(load.reshape(batch, groups, -1).sum(axis=-1), group)
                by_sequence = "seq_aux_loss" in moe.balancing
                tokens = Tokens(of_all // batch, batch) if by_sequence else Tokens(of_all)
                load = load if by_sequence else load.sum(axis=0, keepdims=True)
                found.append(_Loss(name, coefficient, routing.group_weights(load, tokens, share, number)))
        return found

    def _of_all_replicas(self, load: Array, tokens: int, figures: StepFigures | None) -> list[_Loss]:
        """The balancing loss of the mean load of this step's micro-batches so far on all replicas (Qiu et al., "Demons
        in the Detail", 2025), in a list; empty if it is off."""
        coefficient = self.config.balancing_losses.get("global_aux_loss")
        if not coefficient:
            return []
        group = parallel_state.get_group({"cp": "dp-cp", "tp-cp": "tp-dp-cp"}[self.sharing])
        whole = _sum(load.sum(axis=0, keepdims=True), group)
        if figures is not None:
            whole = figures.running_mean("global load", self.layer_number, whole)
        weights = routing.balance_weights(whole, Tokens(tokens * group.size), self.rule.topk)
        name, replicas = BALANCING_LOSSES["global_aux_loss"], parallel_state.get_data_parallel_world_size()
        return [_Loss(name, coefficient, weights, replicas)]

    def _report(
        self, figures: StepFigures | None, losses: list[_Loss], sums: Tensor, z_loss: Callable[[], float]
    ) -> None:
        """Report this rank's share of each loss as a figure, which is read from the device at the end of the step."""
        if figures is None:
            return
        share = 1.0 / self.copies
        for loss in losses:
            figures.add(loss.name, partial(loss.value, sums), self.layer_number, share)
        figures.add(step_figures.Z_LOSS, z_loss, self.layer_number, share)


def _sum(load: Array, group: Group) -> Array:
    """The sum over the group of each rank's counts `load`, float64; they travel as integers, because float32 has all of
    these up to 2^24 only."""
    if group.size > 1:
        load = group.all_reduce(Tensor.from_numpy(np.ascontiguousarray(load, np.int32))).asnumpy()
    return load.astype(np.float64)


def _tensor(values: Array) -> Tensor:
    return Tensor.from_numpy(np.ascontiguousarray(values, np.float32))
