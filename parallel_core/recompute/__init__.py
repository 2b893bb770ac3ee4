"""What is computed again in the backward pass instead of being kept (Chen et al., 2016): which layers, which modules.

`tables` turns what a user wrote into layers by chunk and stage, `modules` names into the modules of a layer, and `plan`
puts both notations, Megatron's flags and the lists by stage, into one value. `offload` says what lies in host memory.
"""

from parallel_core.recompute.modules import (
    FIRST_LINEAR,
    MEGATRON_MODULES,
    NORMS,
    OUTPUT_DROPPED,
    UP_PROJECTIONS,
    LayerKind,
    matching,
    modules_of,
    path_in_layer,
)
from parallel_core.recompute.offload import WHOLE_LAYER, OffloadSettings, wrong_offload
from parallel_core.recompute.plan import BY_STAGE, ChunkRecompute, LayerRecompute, RecomputePlan, wrong_settings
from parallel_core.recompute.tables import beyond

__all__ = [
    "BY_STAGE",
    "FIRST_LINEAR",
    "MEGATRON_MODULES",
    "NORMS",
    "OUTPUT_DROPPED",
    "UP_PROJECTIONS",
    "WHOLE_LAYER",
    "ChunkRecompute",
    "LayerKind",
    "LayerRecompute",
    "OffloadSettings",
    "RecomputePlan",
    "beyond",
    "matching",
    "modules_of",
    "path_in_layer",
    "wrong_offload",
    "wrong_settings",
]
