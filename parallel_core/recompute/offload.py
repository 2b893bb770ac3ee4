"""The modules of a layer whose saved activations lie in host memory."""

from collections.abc import Iterator
from typing import Protocol

from parallel_core.findings import Finding

WHOLE_LAYER = ""
"""The path within a layer that stands for all of it."""

SWAP_MODULES = {
    "input_norm": "input_layernorm",
    "input_layernorm": "input_layernorm",
    "self_attention": "self_attention",
    "post_attention_norm": "pre_mlp_layernorm",
    "pre_mlp_layernorm": "pre_mlp_layernorm",
    "mlp": "mlp",
}
"""Name in --swap-modules -> path of the module within the layer."""

OFFLOAD_MODULES = {
    "attn_norm": "input_layernorm",
    "qkv_linear": "self_attention.linear_qkv",
    "core_attn": "self_attention.core_attention",
    "attn_proj": "self_attention.linear_proj",
    "mlp_norm": "pre_mlp_layernorm",
}
"""Name in --offload-modules -> path of the module within the layer; of Megatron's names those that a dense layer
has."""


class OffloadSettings(Protocol):
    """The options of a RecomputeConfig that concern offloading."""

    swap_attention: bool
    swap_modules: str
    cpu_offloading_num_layers: int
    fine_grained_activation_offloading: bool
    offload_modules: list[str]

    @property
    def smallest_offloaded(self) -> int:
        """The fewest elements with which a saved activation of an offloaded module goes to host memory."""


def offloaded_modules(settings: OffloadSettings, index: int) -> tuple[str, ...]:
    """Paths, within the layer at position `index` of its chunk, of the modules whose saved activations these
    settings put in host memory; none of them lies in another. The empty path stands for the whole layer. Raises
    KeyError if `swap_modules` is read and has a name that is no key of `SWAP_MODULES`, or `offload_modules` is read and
    has one that is no key of `OFFLOAD_MODULES`."""
    if index < settings.cpu_offloading_num_layers:
        return (WHOLE_LAYER,)
    names = settings.swap_modules.split(",") if settings.swap_attention else []
    modules = {SWAP_MODULES[name] for name in names}
    if settings.fine_grained_activation_offloading:
        modules |= {OFFLOAD_MODULES[name] for name in settings.offload_modules}
    return tuple(sorted(path for path in modules if path.partition(".")[0] not in modules - {path}))


def wrong_offload(settings: OffloadSettings, num_layers: int) -> Iterator[Finding]:
    """Findings about names in --offload-modules that are no keys of `OFFLOAD_MODULES`, about names in --swap-modules
    that are no keys of `SWAP_MODULES` (with --swap-attention), about a --cpu-offloading-num-layers above `num_layers`,
    and about --fine-grained-activation-offloading without --offload-modules."""
    if settings.cpu_offloading_num_layers > num_layers:
        given = settings.cpu_offloading_num_layers
        yield Finding("--cpu-offloading-num-layers", given, f"there are {num_layers} layers", "lower it")
    for flag, given_names, known in (
        ("--swap-modules", settings.swap_modules.split(",") if settings.swap_attention else [], SWAP_MODULES),
        ("--offload-modules", settings.offload_modules, OFFLOAD_MODULES),
    ):
        for name in given_names:
            if name not in known:
                yield Finding(
                    flag,
                    name,
                    f"stays on the device: of a layer {', '.join(known)} can lie on the host",
                    "leave it out",
                )
    if settings.fine_grained_activation_offloading and not settings.offload_modules:
        yield Finding("--fine-grained-activation-offloading", None, "needs --offload-modules", "add it")
