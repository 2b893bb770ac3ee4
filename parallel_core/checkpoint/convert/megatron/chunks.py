"""What a rank of Megatron's has of a model: which parameters, and in which order they lie in its memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from parallel_core.checkpoint.convert.megatron.names import LOCAL_ORDER, Order, in_order, layer_of
from parallel_core.checkpoint.convert.model import VOCABULARY
from parallel_core.config import serialise

EMBEDDING = VOCABULARY[0]


@dataclass(frozen=True)
class Chunk:
    """A chunk of layers of a pipeline stage, and what is beside them there."""

    layers: range
    is_first: bool
    is_last: bool

    def parameters(
        self, names: Iterable[str], network: Mapping[str, Any], order: Order = LOCAL_ORDER
    ) -> list[tuple[str, str]]:
        """(name in the whole model, the chunk's own name for it) of what it has, in the order of the model. A tied
        model's last chunk has a copy of the word embedding for its output layer."""
        found = [(name, name) for name in in_order((name for name in names if self._has(name, network)), order)]
        tied = not network.get("untie_embeddings_and_output_weights", False)
        if tied and self.is_last and not self.is_first:
            found.append((EMBEDDING, "output_layer.weight"))
        return found

    def _has(self, name: str, network: Mapping[str, Any]) -> bool:
        """The first chunk embeds, and the last one to predict further tokens."""
        layer = layer_of(name)
        if layer is not None:
            return layer in self.layers
        if not name.startswith("embedding."):
            return self.is_last
        depths = serialise.get(network, "multi_token_prediction.num_layers") or 0
        return self.is_first or (self.is_last and depths > 0)


def chunks_of(layers: list[list[range]]) -> list[list[Chunk]]:
    """The chunks of a model, indexed [chunk][stage] as their layers are."""
    last = (len(layers) - 1, len(layers[-1]) - 1)
    return [
        [Chunk(own, number == stage == 0, (number, stage) == last) for stage, own in enumerate(stages)]
        for number, stages in enumerate(layers)
    ]
