"""Comparison of two configurations: the settings by which they describe different networks, beyond names and shapes of
parameters.

An option says whether it is of the network (`option(of=...)`), and `parallel_core/no_effect` beside which others it
does nothing. This module says how settings that are written differently mean the same.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import Any, NamedTuple

from parallel_core.attention.rotary import ORIGINAL_LENGTHS
from parallel_core.config import AllConfig, SlidingWindowConfig
from parallel_core.config.hybrid import MAMBA
from parallel_core.config.linear_attention import LinearAttentionConfig
from parallel_core.config.tree import FLAG_OF, OF_NETWORK
from parallel_core.findings import shown
from parallel_core.moe.routing import RoutingRule
from parallel_core.no_effect import without_effect


class Difference(NamedTuple):
    """A setting (path, flag) in which two networks differ, with the values of both."""

    path: str
    flag: str
    one: Any
    other: Any

    def __str__(self) -> str:
        """The first network's setting as flag and value; a switch's name with its value, for the flag may turn it
        off."""
        if self.one is None or isinstance(self.one, bool):
            return f"{self.flag} ({self.path.rpartition('.')[2]} is {self.one})"
        return shown(self.flag, self.one)


def differences(one: AllConfig, other: AllConfig) -> list[Difference]:
    """The settings of the network that act in both of two configurations and differ; if there are none, those that act
    in only one of the two and differ."""
    idle = [without_effect(config, OF_NETWORK, at_any_length=True) for config in (one, other)]
    in_both: list[Difference] = []
    in_one: list[Difference] = []
    for path in OF_NETWORK:
        acts = [path not in reasons for reasons in idle]
        if any(acts) and meant(path, one) != meant(path, other):
            (in_both if all(acts) else in_one).append(_difference(path, one, other))
    return in_both or in_one


def _difference(path: str, one: AllConfig, other: AllConfig) -> Difference:
    """The difference at a path, with the values as they were given or, where these are equal, as they act."""
    given = attrgetter(path)(one), attrgetter(path)(other)
    values = given if given[0] != given[1] else (meant(path, one), meant(path, other))
    return Difference(path, FLAG_OF[path], *values)


def meant(path: str, config: AllConfig) -> Any:
    """The value by which two networks are compared in the option at `path`: the option's own, or the one that
    `_MEANINGS` gives, such as None for an option that is compared by another one's value."""
    name = path.partition(".")[2]
    return _MEANINGS[name](config) if name in _MEANINGS else attrgetter(path)(config)


def layers_with_experts(frequency: int | list[int], layers: int) -> list[int]:
    """For each layer 1 if it has experts by --moe-layer-freq, else 0. A number n gives them to every n-th layer, from
    layer 0 on; of a list this is a copy, whatever its length."""
    return [int(layer % frequency == 0) for layer in range(layers)] if isinstance(frequency, int) else list(frequency)


def layers_with_window(size: int | None, skip_freq: int | list[int] | None, layers: int) -> list[int]:
    """For each layer 1 if --window-size and --window-attn-skip-freq give it the window, else 0. Layers that a list
    lacks are as its last; without `skip_freq` all have it, if `size` gives one."""
    window = SlidingWindowConfig(size=size, skip_freq=skip_freq)
    return [int(size is not None and window.is_in(layer)) for layer in range(layers)]


def layers_with_states(frequency: int | list[int] | None, layers: int) -> list[int]:
    """For each layer 1 if by --linear-attention-freq it keeps a state instead of keys and values, else 0. Layers that a
    list lacks are as its last; for None all keep one."""
    linear = LinearAttentionConfig(linear_attention_freq=frequency)
    return [int(linear.is_linear(layer)) for layer in range(layers)]


def shares_of_all(config: AllConfig) -> bool:
    """Whether --moe-router-pre-softmax is on and the chosen experts' scores are not divided by their sum."""
    moe = config.moe_config
    return moe.moe_router_pre_softmax and not RoutingRule.of(moe).normalize


def groups(config: AllConfig) -> tuple[int, int, int] | tuple[None, None, None]:
    """(number of groups of experts, number of groups from which a token's experts may come, number of a group's best
    experts whose scores add up to the group's); three times None if a token's experts may come from all groups."""
    rule = RoutingRule.of(config.moe_config)
    if rule.group_topk is None or rule.group_topk >= rule.groups:
        return None, None, None
    return rule.groups, rule.group_topk, rule.counted_of_group


def scaling(config: AllConfig) -> str | None:
    """The kind of stretching of positions (--rope-scaling-type); None without one, and for yarn or llama3 with a factor
    of 1."""
    model = config.model_config
    factors = {"yarn": model.rotary_factor, "llama3": model.rope_scaling.factor}
    return None if factors.get(model.rope_scaling.type or "") == 1 else model.rope_scaling.type


def original_length(config: AllConfig) -> int:
    """The length, in tokens, before rotary positions were stretched: the given one, else Megatron's default for the
    kind of stretching by `scaling` (8192 of llama3, 4096 of yarn), else --max-position-embeddings."""
    model = config.model_config
    default = ORIGINAL_LENGTHS.get(scaling(config) or "", model.max_position_embeddings)
    return model.rope_scaling.original_max_position_embeddings or default


def _latent_factor(config: AllConfig) -> float | None:
    """Latent attention's factor of stretching; None where neither positions nor scores depend on it."""
    is_used = scaling(config) is not None or config.model_config.rope_scaling.mscale_all_dim > 0
    return config.model_config.multi_latent_attention.rotary_scaling_factor if is_used else None


def _band(config: AllConfig) -> int | None:
    """The window that --pre-tockens gives to every layer; None without one."""
    arguments = config.model_config.fa_config
    return arguments.pre_tokens if arguments.has_band and arguments.pre_tokens < type(arguments).pre_tokens else None


def latent_norm_epsilon(config: AllConfig) -> float:
    """The epsilon with which the norms of latents act: their own or, where none is given, --norm-epsilon."""
    return config.model_config.multi_latent_attention.latent_norm_epsilon or config.model_config.norm_epsilon


def shared_choices(config: AllConfig) -> str:
    """A letter for each layer by the options of sparse attention, in use or not: F where its own indexer chooses keys,
    S where it takes the choice of a layer before it."""
    sparse = config.model_config.sparse_attention
    return "".join("FS"[sparse.is_shared(layer)] for layer in range(config.model_config.num_layers))


def _reach_of_state_spaces(config: AllConfig) -> int | None:
    """The length of Mamba-2's short convolution; None without such layers (gated delta nets have an option of their
    own)."""
    hybrid = config.model_config.hybrid
    return hybrid.mamba_d_conv if hybrid.enabled and hybrid.has(MAMBA) else None


def _window_of_layers(config: AllConfig) -> list[int]:
    model = config.model_config
    return layers_with_window(model.sliding_window.size, model.sliding_window.skip_freq, model.num_layers)


_MEANINGS: dict[str, Callable[[AllConfig], Any]] = {
    "normalization": lambda config: config.model_config.normalization.removeprefix("Fused"),
    "max_position_embeddings": lambda config: (  # the table's shape tells it; LongRoPE's magnitude depends on it, too
        config.model_config.max_position_embeddings if scaling(config) == "longrope" else None
    ),
    "use_rotary_embedding": lambda _: None,  # compared by position_embedding_type
    "rotary_percent": lambda config: config.model_config.rotating_share,
    "rope_scaling.type": scaling,
    "rope_scaling.factor": lambda config: (
        None if config.model_config.multi_latent_attention.enabled else config.model_config.rope_scaling.factor
    ),
    "rope_scaling.original_max_position_embeddings": original_length,
    "sliding_window.skip_freq": _window_of_layers,
    "fa_config.sparse_mode": lambda _: None,  # compared by fa_config.pre_tokens
    "fa_config.pre_tokens": _band,
    "multi_latent_attention.latent_norm_epsilon": latent_norm_epsilon,
    "sparse_attention.dsa_indexer_k_norm_epsilon": lambda config: (
        config.model_config.sparse_attention.dsa_indexer_k_norm_epsilon or latent_norm_epsilon(config)
    ),
    "multi_latent_attention.rotary_scaling_factor": _latent_factor,
    "sparse_attention.dsa_indexer_topk_freq": shared_choices,
    "sparse_attention.dsa_indexer_skip_topk_offset": lambda _: None,  # compared by dsa_indexer_topk_freq
    "sparse_attention.index_topk_pattern": lambda _: None,  # compared by dsa_indexer_topk_freq
    "linear_attention.linear_attention_freq": lambda config: layers_with_states(
        config.model_config.linear_attention.linear_attention_freq, config.model_config.num_layers
    ),
    "hybrid.mamba_d_conv": _reach_of_state_spaces,
    "moe_layer_freq": lambda config: layers_with_experts(
        config.moe_config.moe_layer_freq, config.model_config.num_layers
    ),
    "moe_router_load_balancing_type": lambda config: (
        config.moe_config.own_choice
    ),  # load-balancing losses change no choice
    "moe_router_pre_softmax": shares_of_all,
    "moe_router_norm_topk_prob": lambda _: None,  # compared by moe_router_pre_softmax
    "moe_router_topk_scaling_factor": lambda config: config.moe_config.moe_router_topk_scaling_factor or 1.0,
    "moe_router_num_groups": lambda config: groups(config)[0],
    "moe_router_group_topk": lambda config: groups(config)[1],
    "moe_router_group_score_topk": lambda config: groups(config)[2],
    "moe_input_jitter_eps": lambda config: config.moe_config.sampled_within,
}
"""End of an option's path -> function from a configuration to the value with which the option acts."""
