"""The optimizer Muon: momentum whose matrices are orthogonalised."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from parallel_core.buffers.layout import Entry
from parallel_core.config.base import Config, option
from parallel_core.config.update_rules.rule import MOMENTUM, UpdateRule
from parallel_core.findings import Finding
from parallel_core.messages import Message, message
from parallel_core.numerics.dtypes import DTYPES
from parallel_core.numerics.newton_schulz import COEFFICIENTS, PRECISIONS
from parallel_core.sharding import Coordinates, ShardSpec

FLOAT32 = DTYPES["float32"].bytes


@dataclass(kw_only=True)
class MuonConfig(Config):
    """Options of the update by --optimizer muon of matrices other than word embedding and output layer (Jordan et al.,
    "Muon", 2024); Adam's settings are for the rest."""

    muon_momentum: float = option("--muon-momentum", 0.9, at_least=0, below=1)
    """Decay rate of the average of gradients."""
    muon_nesterov: bool = option("--muon-nesterov", False)
    """Orthogonalise the average as it will be after a further step with the same gradient (Nesterov)."""
    muon_scale_mode: str = option(
        "--muon-scale-mode", "spectral", choices=("spectral", "unit_rms_norm", "shape_scaling")
    )
    """Factor of an orthogonal matrix [o, i]: sqrt(max(o, i)), sqrt(o / i), or sqrt(max(1, o / i))."""
    muon_extra_scale_factor: float = option("--muon-extra-scale-factor", 1.0, above=0)
    """A further factor of an orthogonal matrix; 0.2 gives updates about as large as Adam's."""
    muon_num_ns_steps: int = option("--muon-num-ns-steps", 5, at_least=1)
    """Number of Newton-Schulz iterations."""
    muon_coefficient_type: str = option("--muon-coefficient-type", "quintic", choices=tuple(COEFFICIENTS))
    """Polynomials of the Newton-Schulz iterations."""
    muon_fp32_matmul_prec: str = option("--muon-fp32-matmul-prec", "medium", choices=("medium", "high"))
    """Iterate in bfloat16 (medium) or in float32 (high)."""
    muon_tp_mode: str = option("--muon-tp-mode", "duplicated", choices=("blockwise", "duplicated", "distributed"))
    """Orthogonalisation of a matrix that tensor parallelism cuts: each rank its block alone (blockwise); each rank all
    of the matrix, which is gathered (duplicated); or each rank its part of the whole, with sums over the ranks in every
    iteration (distributed)."""
    muon_split_qkv: bool = option("--muon-no-split-qkv", True)
    """Treat queries, keys and values in the first linear of attention as three matrices."""


def _is_matrix(spec: ShardSpec) -> bool:
    """Whether a parameter is updated by Muon: a matrix that is not embedding or output layer, whose rows are looked up
    or chosen."""
    return len(spec.shape) == 2 and spec.role != "embedding or output"


def _splits_whole_groups(sections: Any) -> Iterator[Finding]:
    """The finding that ranks have parts of a query group, in which they cannot tell queries from keys without gathering
    the matrix."""
    muon, tensor = sections.optimizer_config.muon, sections.parallel_config.tensor_model_parallel_size
    if muon.muon_tp_mode == "duplicated" or not muon.muon_split_qkv:
        return
    groups = sections.model_config.num_query_groups
    if groups % tensor:
        rule = f"cannot split --num-query-groups {groups} over --tensor-model-parallel-size {tensor}"
        yield Finding("--muon-tp-mode", muon.muon_tp_mode, rule, "use duplicated or --muon-no-split-qkv")


def _messages(entry: Entry, muon: MuonConfig, coordinates: Coordinates) -> Iterator[Message]:
    """Messages of the update of one matrix that tensor parallelism, or that of experts, cuts: it is gathered, or its
    Gram matrices are summed."""
    if not entry.spec.cuts or muon.muon_tp_mode == "blockwise":
        return
    (cut,) = entry.spec.cuts
    ranks = coordinates[cut.over][1]
    if muon.muon_tp_mode == "duplicated":
        yield from message(cut.over, "all_gather", entry.place.size * FLOAT32, ranks, "direction of a matrix")
        return
    rows = entry.spec.interleaved_rows if muon.muon_split_qkv else ()
    item_size = DTYPES[PRECISIONS[muon.muon_fp32_matmul_prec]].bytes
    outputs, inputs = entry.place.shape
    repeats = outputs // sum(rows) if rows else 1
    for matrix in [(repeats * n, inputs) for n in rows] or [(outputs, inputs)]:
        side = matrix[1 - cut.axis]
        yield from message(cut.over, "all_reduce", FLOAT32, ranks, "norm of a matrix")
        for one in message(cut.over, "all_reduce", side * side * item_size, ranks, "gram matrix"):
            yield one.times(muon.muon_num_ns_steps)


MUON = UpdateRule(
    name="muon",
    options=MuonConfig,
    moments=lambda options: {MOMENTUM: "float32"},
    other_names={"Muon": {}, "dist_muon": {}},
    sharing_names=("dist_muon",),
    is_elementwise=False,
    rate_by_width=(0, 0),
    treats=_is_matrix,
    treated="matrices",
    rest=lambda options: "adam",
    findings=_splits_whole_groups,
    messages=_messages,
)
"""The optimizer muon; dist_muon is Megatron's name of a Muon whose states are sharded over ranks."""
