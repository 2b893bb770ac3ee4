"""Adam, and averages of the weights that it updates."""

from collections.abc import Iterator
from dataclasses import dataclass

from parallel_core.config.base import Config, option
from parallel_core.config.update_rules.rule import UpdateRule
from parallel_core.findings import Finding

STATE_TYPES = {"fp32": "float32", "bf16": "bfloat16"}
"""Value of --exp-avg-dtype and --exp-avg-sq-dtype -> the name of the type."""

EXP_AVG, EXP_AVG_SQ = "exp_avg", "exp_avg_sq"
PMA_WEIGHT = "pma_weight"
"""Name of the state with the running average of weights, which replaces the weights when it is complete."""


@dataclass(kw_only=True)
class AdamConfig(Config):
    """Options of the update of --optimizer adam (Kingma and Ba, 2015; Loshchilov and Hutter, 2019).

    pma: MindFormers' PmaAdamW (Li et al., "Model Merging in Pre-training of Large Language Models", 2025). With
    --pma-fused-algo the weights are added to an average every --pma-interleave-step steps; after --pma-fused-num such
    additions the average replaces the weights, and a new average begins.
    """

    betas: tuple[float, ...] = option("--adam-beta1", (0.9, 0.999))
    """Decay rates of Adam's two moments."""
    eps: float = option("--adam-eps", 1e-8, above=0)
    """Added to the root of Adam's second moment."""
    adam_bias_correction: bool = option("--no-adam-bias-correction", True)
    """Divide Adam's moments, which begin at zero, by 1 - beta^step. Switched off, they are used as they are."""
    decoupled_weight_decay: bool = option("--no-decoupled-weight-decay", True)
    """Apply weight decay to the weights directly (AdamW) instead of adding it to the gradient."""
    use_precision_aware_optimizer: bool = option("--use-precision-aware-optimizer", False)
    """Let the optimizer's states have types of their own."""
    exp_avg_dtype: str = option("--exp-avg-dtype", "fp32", choices=tuple(STATE_TYPES))
    """Type in which Adam's first moment is kept."""
    exp_avg_sq_dtype: str = option("--exp-avg-sq-dtype", "fp32", choices=tuple(STATE_TYPES))
    """Type in which Adam's second moment is kept."""
    pma_fused_algo: str | None = option("--pma-fused-algo", None, choices=("ema", "sma"))
    """Average weights exponentially from zero (ema), or with equal weights (sma); none: weights are not averaged."""
    pma_fused_num: int = option("--pma-fused-num", 10, at_least=1)
    """Number of times that weights are added to an average before it replaces them."""
    pma_interleave_step: int = option("--pma-interleave-step", 1000, at_least=1)
    """Steps from one time that weights are added to an average to the next."""
    pma_ema_alpha: float = option("--pma-ema-alpha", 0.2, above=0, below=1)
    """Share of the newest weights in an exponential average."""

    def rules(self) -> Iterator[Finding]:
        for number, beta in enumerate(self.betas, start=1):
            if not 0 <= beta < 1:
                yield Finding(f"--adam-beta{number}", beta, "must be at least 0 and below 1", "change it")


def _moments(options: AdamConfig) -> dict[str, str]:
    asked = ("fp32", "fp32")
    if options.use_precision_aware_optimizer:
        asked = (options.exp_avg_dtype, options.exp_avg_sq_dtype)
    moments = dict(zip((EXP_AVG, EXP_AVG_SQ), map(STATE_TYPES.__getitem__, asked), strict=True))
    return moments if options.pma_fused_algo is None else {**moments, PMA_WEIGHT: "float32"}


ADAM = UpdateRule(
    name="adam",
    options=AdamConfig,
    moments=_moments,
    other_names={
        **{name: {} for name in ("AdamW", "mint.AdamW", "SpeedAdamW", "AdamWZeRO")},
        "Adam": {"decoupled_weight_decay": False},
        "AdamWeightDecay": {"adam_bias_correction": False},
        **{name: {"pma_fused_algo": "ema"} for name in ("PmaAdamW", "PmAdamW")},
    },
    asked_by="--optimizer adam or muon",
    exclusive=("use_precision_aware_optimizer", "pma_fused_algo"),
    megatrons_states=(EXP_AVG, EXP_AVG_SQ),
)
"""The optimizer adam; `other_names` are MindSpore's and MindFormers'."""
