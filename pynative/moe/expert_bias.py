"""Balance between experts without a loss: a bias on each expert's score moves up where it gets few tokens (Wang et al.,
"Auxiliary-Loss-Free Load Balancing", 2024)."""

from collections.abc import Iterable, Mapping

import numpy as np
from mindspore import Tensor, nn

from parallel_core.numerics.dtypes import Array
from parallel_core.step_figures import TOKENS_ROUTED
from pynative.memory import in_place
from pynative.moe.router import TopKRouter
from pynative.step_part import StepPart


class ExpertBiases(StepPart):
    """The expert biases of the routers in a stage's chunks, moved once in each training step that is not skipped, but
    not beside adapters."""

    def __init__(self, model: Iterable[nn.Cell]) -> None:
        cells = [cell for chunk in model for _, cell in chunk.cells_and_names()]
        routers = [cell for cell in cells if isinstance(cell, TopKRouter)]
        biased = [(router, router.expert_bias) for router in routers if router.expert_bias is not None]
        tables = [router.tid2eid for router in routers if router.tid2eid is not None]
        self.untrained = [bias for _, bias in biased] + tables
        """The routers' parameters that have no gradient: biases, and tables of hash layers."""
        self._moved = [(router, bias) for router, bias in biased if router.moves_bias]

    def after_update(self, figures: Mapping[str, Array]) -> None:
        """Move each bias by the update rate: down where an expert got more than the experts' mean of the step's routed
        tokens, up where less. Biases beside adapters stay (`TopKRouter.moves_bias`). figures: the step's, with the
        counts TOKENS_ROUTED [layers, E]."""
        for router, bias in self._moved:
            counts = figures[TOKENS_ROUTED][router.layer_number - 1]
            moves = router.moe.moe_router_bias_update_rate * np.sign(counts.mean() - counts)
            moved = bias.asnumpy() + moves.astype(np.float32)
            in_place.assign(bias, Tensor.from_numpy(moved))
