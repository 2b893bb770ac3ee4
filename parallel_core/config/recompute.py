"""Options of recomputation, in Megatron's and in MindFormers' notation, and of activations in host memory."""

from dataclasses import dataclass
from typing import Any

from parallel_core.config.base import Config, option


@dataclass(kw_only=True)
class RecomputeConfig(Config):
    """Options of activation recomputation (Chen et al., 2016), Megatron's flags and MindFormers' lists by stage, and of
    activations in host memory."""

    recompute_granularity: str | None = option("--recompute-granularity", None, choices=("selective", "full"))
    """Recompute in the backward pass modules of layers (selective), by default attention's core, or whole layers
    (full)."""
    recompute_method: str | None = option("--recompute-method", None, choices=("uniform", "block"))
    """Layers of a full recompute: all, in groups that run again together (uniform), or the first of each chunk
    (block)."""
    recompute_num_layers: int | None = option("--recompute-num-layers", None, at_least=0)
    """Number of layers of a recomputed group (uniform), or recomputed layers of a chunk (block)."""
    recompute_modules: list[str] | None = option("--recompute-modules", None)
    """Modules that a selective recompute covers; attention's core if not given."""
    recompute_activation_function: bool = option("--recompute-activation-function", False)
    """Keep the input of the feed-forward block's activation, but not its output."""
    recompute_activation_function_num_layers: int | None = option(
        "--recompute-activation-function-num-layers", None, at_least=0
    )
    """Number of layers of a chunk, after those that are recomputed whole, whose activation is recomputed; all if not
    given."""
    recompute_norm: bool = option("--recompute-norm", False)
    """Keep the input of a layer's norms, but not their output."""
    recompute_norm_num_layers: int | None = option("--recompute-norm-num-layers", None, at_least=0)
    """Number of layers of a chunk, after those that are recomputed whole, whose norms are recomputed; all if not
    given."""
    recompute_mla_up_proj: bool = option("--recompute-mla-up-proj", False)
    """Keep the latents of latent attention, but not the queries, keys and values that are made of them."""
    enable_recompute_layers_per_pp_rank: bool = option("--enable-recompute-layers-per-pp-rank", False)
    """Let --recompute-num-layers (block) and the numbers of layers of norms and activations be of a stage, dealt over
    its chunks one layer at a time, not of each chunk."""

    recompute: Any = option("--recompute", None)
    """Layers to run again in the backward pass: true, all; a number for each stage, dealt over its chunks; or for each
    chunk a list of numbers by stage. A chunk's first layers are taken."""
    select_recompute: Any = option("--select-recompute", None)
    """Modules to compute again in the backward pass: names, in all layers, or {name: layers as of --recompute}."""
    select_recompute_exclude: Any = option("--select-recompute-exclude", None)
    """Modules that are kept although --recompute or --select-recompute names them: names, or {name: layers as of
    --recompute}."""
    select_comm_recompute: Any = option("--select-comm-recompute", None)
    """Norms whose gathered output is not kept with --no-mp-comm-recompute: names, or {name: layers as of
    --recompute}."""
    select_comm_recompute_exclude: Any = option("--select-comm-recompute-exclude", None)
    """Norms of --select-comm-recompute whose gathered output is kept nevertheless: names, or {name: layers as of
    --recompute}."""
    mp_comm_recompute: bool = option("--no-mp-comm-recompute", True)
    """Run a recomputed layer's tensor-parallel collectives again instead of keeping their outputs."""
    recompute_slice_activation: bool = option("--recompute-slice-activation", False)
    """Keep only this tensor-parallel rank's slice of a recomputed layer's input."""

    swap_attention: bool = option("--swap-attention", False)
    """Keep activations that --swap-modules save for the backward in host memory, in layers not recomputed whole."""
    swap_modules: str = option("--swap-modules", "input_norm,self_attention,post_attention_norm")
    """The modules of a layer whose activations are swapped, separated by commas."""
    cpu_offloading_num_layers: int = option("--cpu-offloading-num-layers", 0, at_least=0)
    """Keep in host memory the saved activations of this many layers of each chunk, the first."""
    fine_grained_activation_offloading: bool = option("--fine-grained-activation-offloading", False)
    """Keep saved activations of `offload_modules` in host memory, in layers that are not recomputed whole."""
    offload_modules: list[str] = option("--offload-modules", None)
    """Modules of a layer whose saved activations `fine_grained_activation_offloading` keeps in host memory."""
    min_offloaded_tensor_size: int = option("--min-offloaded-tensor-size", 1048576, at_least=0)
    """Number of elements below which `fine_grained_activation_offloading` leaves a tensor where it is."""

    def derive(self) -> None:
        self.fill("offload_modules", list)
        for name in LISTED:
            if asks_for_nothing(getattr(self, name)):
                setattr(self, name, None)

    @property
    def smallest_offloaded(self) -> int:
        """The number of elements from which on a saved tensor may go to host memory: --min-offloaded-tensor-size with
        --fine-grained-activation-offloading, else 1."""
        return self.min_offloaded_tensor_size if self.fine_grained_activation_offloading else 1

    @property
    def offload_flag(self) -> str | None:
        """The first of --swap-attention, --cpu-offloading-num-layers and --fine-grained-activation-offloading that is
        given (the second: above 0); None: none is."""
        asked = {
            "--swap-attention": self.swap_attention,
            "--cpu-offloading-num-layers": self.cpu_offloading_num_layers,
            "--fine-grained-activation-offloading": self.fine_grained_activation_offloading,
        }
        return next((flag for flag, value in asked.items() if value), None)


def asks_for_nothing(value: Any) -> bool:
    """Whether a recompute setting that is given names no layer: it is False, 0, or a list, tuple or dictionary that is
    empty or has no other values than these. False for None."""
    if isinstance(value, dict):
        return all(asks_for_nothing(part) for part in value.values())
    if isinstance(value, list | tuple):
        return all(asks_for_nothing(part) for part in value)
    return isinstance(value, bool | int) and not value


MEGATRON_NAMES = ("recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules")
"""Options that MindFormers' files have in the model section, under Megatron's names."""
LISTED = (
    "recompute",
    "select_recompute",
    "select_recompute_exclude",
    "select_comm_recompute",
    "select_comm_recompute_exclude",
)
"""Options in MindFormers' notation: True, a number for each stage, lists of them, or such values by module."""
STAGE_NAMES = ("recompute", "select_recompute", "select_comm_recompute")
"""Options that MindFormers' files have in the parallel section."""
