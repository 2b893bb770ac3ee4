"""What is computed again in the backward pass instead of being kept (Chen et al., 2016): which layers, which parts.

`tables` turns what a user wrote into layers by chunk and stage, `parts` is how a block describes what of it may run
again, and `plan` puts both notations, Megatron's flags and the lists by stage, into one value. `offload` says what lies
in host memory.
"""

from parallel_core.recompute.offload import WHOLE_LAYER, OffloadSettings, wrong_offload
from parallel_core.recompute.parts import Again, LayerParts, Part, Sizes, is_within
from parallel_core.recompute.plan import (
    BY_STAGE,
    CellRecompute,
    ChunkRecompute,
    LayerRecompute,
    RecomputePlan,
    wrong_settings,
)
from parallel_core.recompute.tables import beyond

__all__ = [
    "BY_STAGE",
    "WHOLE_LAYER",
    "Again",
    "CellRecompute",
    "ChunkRecompute",
    "LayerParts",
    "LayerRecompute",
    "OffloadSettings",
    "Part",
    "RecomputePlan",
    "Sizes",
    "beyond",
    "is_within",
    "wrong_offload",
    "wrong_settings",
]
