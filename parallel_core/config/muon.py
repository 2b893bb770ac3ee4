"""Muon: momentum whose matrices are orthogonalised."""

from __future__ import annotations

from dataclasses import dataclass

from parallel_core.config.base import Config, option
from parallel_core.newton_schulz import COEFFICIENTS


@dataclass(kw_only=True)
class MuonConfig(Config):
    """How --optimizer muon updates matrices (Jordan et al., "Muon", 2024); Adam's settings are for the rest."""

    muon_momentum: float = option("--muon-momentum", 0.9, at_least=0, below=1)
    """Decay rate of the average of gradients."""
    muon_nesterov: bool = option("--muon-nesterov", False)
    """Orthogonalise the average as it will be after a further step with the same gradient (Nesterov)."""
    muon_scale_mode: str = option(
        "--muon-scale-mode", "spectral", choices=("spectral", "unit_rms_norm", "shape_scaling")
    )
    """What an orthogonal matrix [o, i] is multiplied with: sqrt(max(o, i)), sqrt(o / i), or sqrt(max(1, o / i))."""
    muon_extra_scale_factor: float = option("--muon-extra-scale-factor", 1.0, above=0)
    """Multiplies that again; 0.2 gives updates about as large as Adam's."""
    muon_num_ns_steps: int = option("--muon-num-ns-steps", 5, at_least=1)
    """Newton-Schulz iterations."""
    muon_coefficient_type: str = option("--muon-coefficient-type", "quintic", choices=tuple(COEFFICIENTS))
    """The polynomials of the iterations."""
    muon_fp32_matmul_prec: str = option("--muon-fp32-matmul-prec", "medium", choices=("medium", "high"))
    """Iterate in bfloat16 (medium) or in float32 (high)."""
    muon_tp_mode: str = option("--muon-tp-mode", "duplicated", choices=("blockwise", "duplicated", "distributed"))
    """Of a matrix that tensor parallelism cuts: each rank orthogonalises its block alone; or all of the matrix, which
    is gathered; or its part of it, with sums over the ranks in every iteration."""
    muon_split_qkv: bool = option("--muon-no-split-qkv", True)
    """Queries, keys and values are three matrices."""
