"""Options of 8-bit training."""

from collections.abc import Iterator
from dataclasses import dataclass

from parallel_core.config.base import Config, option
from parallel_core.findings import Finding
from parallel_core.numerics.float8_recipes import FORMATS, SCALINGS, Recipe


@dataclass(kw_only=True)
class Float8Config(Config):
    """Options that round linears' operands to 8 bits, for studies of the numerics: products are those of float32. They
    act only with --fp8-simulate."""

    fp8_simulate: bool = option("--fp8-simulate", False, of="run")
    """Round the operands of linears' products to the values of --fp8-format."""
    fp8_format: str | None = option("--fp8-format", None, choices=tuple(FORMATS), of="run")
    """Format of inputs, weights and gradients (e4m3), or of inputs and weights, with e5m2 for gradients (hybrid)."""
    fp8_recipe: str = option("--fp8-recipe", "delayed", choices=(*SCALINGS, "custom"), of="run")
    """Scales: for a tensor by its own largest magnitude (tensorwise) or by earlier steps' (delayed); for 1 x 128
    values, and 128 x 128 of weights (blockwise); for 32 values (mxfp8)."""
    fp8_margin: int = option("--fp8-margin", 0, of="run")
    """Powers of two that a delayed scale leaves above the largest magnitude."""
    fp8_amax_history_len: int = option("--fp8-amax-history-len", 1, at_least=1, of="run")
    """Steps whose largest magnitudes a delayed scale remembers."""
    fp8_amax_compute_algo: str = option(
        "--fp8-amax-compute-algo", "most_recent", choices=("most_recent", "max"), of="run"
    )
    """The largest magnitude that a delayed scale follows: the last step's, or the largest that is remembered."""
    fp8_wgrad: bool = option("--no-fp8-wgrad", True, of="run")
    """Round the operands of weights' gradients, too."""
    first_last_layers_bf16: bool = option("--first-last-layers-bf16", False, of="run")
    """Leave the first and the last layers in the 16-bit type."""
    num_layers_at_start_in_bf16: int = option("--num-layers-at-start-in-bf16", 1, at_least=0, of="run")
    """Number of the first layers that --first-last-layers-bf16 leaves in the 16-bit type."""
    num_layers_at_end_in_bf16: int = option("--num-layers-at-end-in-bf16", 1, at_least=0, of="run")
    """Number of the last layers that --first-last-layers-bf16 leaves in the 16-bit type."""

    def rules(self) -> Iterator[Finding]:
        if not self.fp8_simulate:
            return
        if self.fp8_format is None:
            yield self.needs("fp8_simulate", "--fp8-format: e4m3, or hybrid with e5m2 for gradients")
        if self.fp8_recipe not in SCALINGS:
            rule = f"is made by a script's own code, which is not simulated; it can be {', '.join(SCALINGS)}"
            yield self.breaks("fp8_recipe", rule, "change it")
        if self.first_last_layers_bf16 and self.fp8_recipe == "delayed":
            yield self.clashes("first_last_layers_bf16", "--fp8-recipe delayed, as in Megatron")
        if not self.fp8_wgrad and self.fp8_recipe != "delayed":
            yield self.breaks("fp8_wgrad", f"needs --fp8-recipe delayed, not {self.fp8_recipe}, as in Megatron")

    @property
    def recipe(self) -> Recipe | None:
        """The rounding of linears to 8 bits; None: no linear is rounded."""
        if not self.fp8_simulate or self.fp8_format is None or self.fp8_recipe not in SCALINGS:
            return None
        delayed = (self.fp8_margin, self.fp8_amax_history_len, self.fp8_amax_compute_algo)
        return Recipe(self.fp8_recipe, self.fp8_format, *delayed, self.fp8_wgrad)

    def rounds(self, layer: int | None, layers: int) -> bool:
        """Whether linears of layer `layer` (global number, from 0) of `layers` are rounded, where any are. layer: None
        for one of multi-token prediction, which is rounded."""
        first, last = self.num_layers_at_start_in_bf16, layers - self.num_layers_at_end_in_bf16
        return layer is None or not self.first_last_layers_bf16 or first <= layer < last
