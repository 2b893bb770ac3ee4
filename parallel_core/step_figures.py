"""The figures that cells (nn.Cell) report of a training step beside the loss, and how they are logged.

Each rank adds up its shares; one sum over all ranks at the end of the step makes them whole. So a value that several
ranks have alike is reported divided by their number. Of attention scores the largest is taken instead of the sum.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import prod

import numpy as np

from parallel_core.config import ModelConfig
from parallel_core.config.moe import BALANCING_LOSSES
from parallel_core.moe.routing import beyond_capacity
from parallel_core.numerics.dtypes import Array

TOKENS_CHOSEN = "tokens_chosen"
"""Name of the figure [layers, E]: how many choices of a layer's tokens fell on each expert, before tokens are dropped.
E counts experts that compute nothing, too, here and in `TOKENS_ROUTED`."""
TOKENS_ROUTED = "tokens_routed"
"""Name of the figure [layers, E]: how many choices of a layer's tokens each expert keeps, after tokens are dropped."""
TOKENS_BEYOND = "tokens_beyond"
"""Name of the figure [layers]: how many choices would be dropped with --moe-drop-rate-capacity-factor."""
INDEXER_LOSS = "indexer loss"
"""Megatron's name of the loss of sparse attention's indexer."""
LARGEST_SCORE = "max_attention_logit"
"""Name (Megatron's) of the figure [layers, n]: each head's largest attention score."""
DEVICE_LOSS, COMMUNICATION_LOSS, Z_LOSS = "device_load_balancing_loss", "comm_load_balancing_loss", "z_loss"


@dataclass(frozen=True)
class Figure:
    """An array that is summed over the micro-batches and ranks of a step, or of which the largest values are taken
    (`is_largest`). is_loss: whether it is averaged over micro-batches and replicas, and logged; layers: the number by
    which the log divides it, 0: none; counted: a function from the array that a cell reports to the one that is
    summed."""

    name: str
    shape: tuple[int, ...]
    is_loss: bool = True
    """Whether the array is averaged over micro-batches and data-parallel replicas, and logged."""
    layers: int = 0
    """For a loss by layer: the number of layers by which its sum is divided in the log. For a router's loss, as in
    Megatron, the decoder's layers of experts and all depths of multi-token prediction, dense ones too; for the
    indexer's all layers that are not in --noop-layers."""
    is_largest: bool = False
    """Whether the largest value over micro-batches and ranks is taken instead of the sum, and logged."""
    counted: Callable[[Array], Array] = np.asarray
    """A function from the array that a cell reports of a micro-batch to the one that is summed."""

    @property
    def is_logged(self) -> bool:
        """Whether the log has the figure as one number."""
        return self.is_loss or self.is_largest

    def logged(self, value: Array) -> float:
        """The number for the log, from the step's array: its largest element if `is_largest`, else its sum; divided by
        `layers` unless that is 0."""
        return float(value.max() if self.is_largest else value.sum()) / max(self.layers, 1)


def figures_of(config: ModelConfig) -> tuple[Figure, ...]:
    """The figures of a step of a model with this configuration. The first axis of a figure by layer counts all layers:
    dense ones, too, and behind the decoder's those of multi-token prediction; of the indexer's loss up to the last that
    is not in --noop-layers."""
    depths = range(1, config.multi_token_prediction.depths + 1)
    further = (Figure(mtp_loss(depth), ()) for depth in depths)
    return (*_of_experts(config), *_of_indexers(config), *_of_scores(config), *further)


def mtp_loss(depth: int) -> str:
    """Name of the figure that is the loss of multi-token prediction at a depth, counted from 1."""
    return f"mtp_{depth}_loss"


def _of_experts(config: ModelConfig) -> Iterator[Figure]:
    of_experts, depths = _layers_of_experts(config), config.multi_token_prediction.depths
    if not of_experts:
        return
    number = config.num_layers + depths
    averaged = depths + sum(layer < config.num_layers for layer in of_experts)
    by_expert = (number, config.moe_config.num_choices)
    yield Figure(TOKENS_CHOSEN, by_expert, is_loss=False)
    yield Figure(TOKENS_ROUTED, by_expert, is_loss=False)
    factor = config.moe_config.monitors.moe_drop_rate_capacity_factor
    if factor is not None and factor != config.moe_config.moe_expert_capacity_factor:
        counted = partial(beyond_capacity, capacity_factor=factor)
        yield Figure(TOKENS_BEYOND, (number,), is_loss=False, counted=counted)
    for name in router_losses(config):
        yield Figure(name, (number,), layers=averaged)


def _of_indexers(config: ModelConfig) -> Iterator[Figure]:
    if config.sparse_attention.enabled and config.sparse_attention.dsa_indexer_loss_coeff:
        layers = _acting_layers(config)
        yield Figure(INDEXER_LOSS, (layers[-1] + 1,), layers=len(layers))


def _of_scores(config: ModelConfig) -> Iterator[Figure]:
    if config.qk_clip.measures:
        layers = config.num_layers + config.multi_token_prediction.depths
        yield Figure(LARGEST_SCORE, (layers, config.num_attention_heads), is_loss=False, is_largest=True)


def _acting_layers(config: ModelConfig) -> list[int]:
    """Numbers, from 0, of the layers that are not in --noop-layers, those of multi-token prediction behind the
    decoder's included."""
    idle = config.parallel_config.noop_layers or ()
    numbers = range(config.num_layers + config.multi_token_prediction.depths)
    return [number for number in numbers if number not in idle]


def decoder_layers_of_experts(config: ModelConfig) -> list[int]:
    """Numbers, from 0, of the decoder's layers that have experts and are not in --noop-layers."""
    return [layer for layer in _layers_of_experts(config) if layer < config.num_layers]


def _layers_of_experts(config: ModelConfig) -> list[int]:
    """Numbers, from 0, of the acting layers that have experts; those of multi-token prediction are as the decoder's
    last layer."""
    last, has_experts = config.num_layers - 1, config.moe_config.has_experts
    return [number for number in _acting_layers(config) if has_experts(min(number, last))]


def router_losses(config: ModelConfig) -> Iterator[str]:
    """The names of the losses whose gradients a configuration adds to those of routers' logits."""
    moe = config.moe_config
    yield from (BALANCING_LOSSES[kind] for kind in moe.balancing_losses)
    if moe.moe_device_level_aux_loss_coeff:
        yield DEVICE_LOSS
    if moe.moe_comm_aux_loss_coeff:
        yield COMMUNICATION_LOSS
    if moe.moe_z_loss_coeff:
        yield Z_LOSS


def logged(config: ModelConfig, values: Mapping[str, Array]) -> dict[str, float]:
    """Name of a figure -> its number for the log, of a step's losses and largest scores. values: those of all figures
    (`figures_of`), or none, which give an empty result."""
    if not values:
        return {}
    return {figure.name: figure.logged(values[figure.name]) for figure in figures_of(config) if figure.is_logged}


def logged_by_layer(config: ModelConfig, values: Mapping[str, Array]) -> dict[str, float]:
    """Name of a router loss of one layer in Megatron's form ("moe/<loss>_layer_<number>", numbers from 0) -> its value,
    for every loss of `router_losses` among a step's values and, as Megatron has it (`track_moe_metrics`), every layer:
    0 in one without experts. The indexer's loss is none of them."""
    return {
        f"moe/{name}_layer_{layer}": float(value)
        for name in router_losses(config)
        for layer, value in enumerate(values.get(name, ()))
    }


def tokens_by_expert(values: Mapping[str, Array]) -> dict[int, list[int]]:
    """Number, from 0, of a layer that has experts -> for each of its experts, those that compute nothing included, the
    number of tokens of a step that chose it, before tokens are dropped. Sums of ranks' shares are rounded."""
    rows = enumerate(values.get(TOKENS_CHOSEN, ()))
    return {layer: np.rint(row).astype(int).tolist() for layer, row in rows if row.any()}


def expert_load(values: Mapping[str, Array]) -> dict[int, float]:
    """Number, from 0, of a layer that has experts -> tokens that chose its busiest expert divided by the mean over its
    experts, rounded to 4 decimals; experts that compute nothing count, too."""
    return {
        layer: round(float(row.max() / row.mean()), 4)
        for layer, row in enumerate(values.get(TOKENS_CHOSEN, ()))
        if row.any()
    }


def to_vector(figures: Sequence[Figure], values: Mapping[str, Array]) -> list[float]:
    """The elements of the figures' values (name -> array), figure after figure, each in C order."""
    return [number for figure in figures for number in values[figure.name].ravel().tolist()]


def from_vector(figures: Sequence[Figure], vector: Sequence[float], parts: int) -> dict[str, Array]:
    """Name -> value, float64, from a vector of `to_vector` that was summed over ranks; losses are divided by `parts`,
    the number of micro-batches of all replicas."""
    ends = np.cumsum([0] + [prod(figure.shape) for figure in figures]).tolist()
    arrays = (np.array(vector[start:end], np.float64) for start, end in pairwise(ends))
    return {
        figure.name: array.reshape(figure.shape) / (parts if figure.is_loss else 1)
        for figure, array in zip(figures, arrays, strict=True)
    }
