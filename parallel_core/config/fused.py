"""The operators that a run is to compute by the device's fused operators, as a value
(`ModelConfig.fused_operators`)."""

from dataclasses import dataclass

NAMES = {
    "attention": "flash attention",
    "rotary": "rotary positions",
    "bias_activation": "swiglu",
    "rms_norm": "RMS norm",
}
"""Operator of the kernels that has a switch -> its name in messages."""

SWITCH_OF = {"weighted_activation": "bias_activation"}
"""Operator of the kernels -> the operator whose switch it has: experts have dense blocks' activation."""


@dataclass(frozen=True)
class FusedOperators:
    """Operators, by the kernels' names, that run by the device's fused operator where there is one.

    A device without the fused operator computes the same but for rounding. Raises AssertionError for a name that is not
    among `NAMES`.
    """

    operators: tuple[str, ...] = ()
    input_layout: str = "SBH"
    """Layout of heads that a fused attention operator takes: SBH, BSH, BSND or BNSD."""

    def __post_init__(self) -> None:
        unknown = set(self.operators) - set(NAMES)
        assert not unknown, f"no switch for {unknown}"

    def has(self, operator: str) -> bool:
        """Whether the operator's switch is on; False for an operator without one."""
        return SWITCH_OF.get(operator, operator) in self.operators

    def __str__(self) -> str:
        return ", ".join(NAMES[operator] for operator in self.operators)


NOTHING_FUSED = FusedOperators()
