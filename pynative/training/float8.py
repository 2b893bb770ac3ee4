"""Delayed scales of 8-bit operands: each follows from the largest magnitudes of earlier steps, over all ranks.

An operand has one scale on all ranks and in all micro-batches of a step; Transformer Engine's follow each micro-batch.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from mindspore import nn

from parallel_core.config.float8 import Float8Config
from parallel_core.numerics.float8_recipes import DelayedScale, Recipe
from pynative import parallel_state
from pynative.collectives.texts import gathered_texts
from pynative.step_part import StepPart


class DelayedScales(StepPart):
    """The delayed scales of the 8-bit operands of this rank's chunks, and, once a step has ended or a state was loaded,
    those of all ranks' operands. Without a delayed recipe in the configuration there are none."""

    def __init__(self, model: Iterable[nn.Cell], config: Float8Config) -> None:
        recipe = config.recipe
        self._recipe = recipe if recipe is not None and recipe.is_delayed else None
        self._own = dict(_scales_of(model)) if self._recipe else {}
        self._all: dict[str, DelayedScale] = dict(self._own)

    @contextmanager
    def around(self, train: bool) -> Iterator[None]:
        """Context of a step, in which the largest magnitudes are noted anew. train: ignored."""
        for scale in self._own.values():
            scale.seen = 0.0
        yield

    def after_step(self) -> None:
        """Advance each scale by the largest magnitude of its operand that any rank saw in the step. All ranks call
        this."""
        if self._recipe is None:
            return
        seen = json.dumps({name: scale.seen for name, scale in self._own.items()})
        largest: dict[str, float] = {}
        for text in gathered_texts(seen, parallel_state.get_world_group()):
            for name, amax in json.loads(text).items():
                largest[name] = float(np.maximum(largest.get(name, 0.0), amax))
        for name, amax in largest.items():
            self._of(name, self._recipe).advance(amax)

    def _of(self, name: str, recipe: Recipe) -> DelayedScale:
        return self._all.setdefault(name, recipe.delayed_scale(name.rpartition(".")[2]))

    def state_dict(self) -> dict[str, Any]:
        """Name of an operand, "<weight>.<operand>" -> a list: its scale, then its largest magnitudes of the last steps
        (at most --fp8-amax-history-len) in which that was not 0, the oldest first."""
        return {name: [scale.scale, *scale.history] for name, scale in self._all.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up what `state_dict` returned, if this run has delayed scales."""
        recipe = self._recipe
        if recipe is None:
            return
        for name, (scale, *history) in state.items():
            own = self._of(name, recipe)
            own.scale, own.history = scale, history[-own.length :]


def _scales_of(model: Iterable[nn.Cell]) -> Iterator[tuple[str, DelayedScale]]:
    for chunk in model:
        for _, cell in chunk.cells_and_names():
            products = getattr(cell, "products", None)
            for operand, scale in getattr(products, "scales", {}).items():
                yield f"{cell.weight.meta.spec.name}.{operand}", scale
