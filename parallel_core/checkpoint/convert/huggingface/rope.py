"""Rotary positions in config.json, and the methods by which they are stretched to longer texts."""

from collections.abc import Mapping
from typing import Any

from parallel_core.attention.rotary import ORIGINAL_LENGTHS, yarn_magnitude
from parallel_core.checkpoint.convert.huggingface.kinds import Group, Settings


def _rope(config: Mapping[str, Any], default_share: float, kinds: tuple[str, ...]) -> Settings:
    """The settings of rotary positions from either spelling: transformers 5 has `rope_parameters`, 4 `rope_theta` and
    `rope_scaling`. default_share: part of a head's channels that rotates if no key says it; kinds: accepted kinds of
    stretching."""
    scaling = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    theta = scaling.pop("rope_theta", config.get("rope_theta"))
    if theta is None:
        raise ValueError(
            'config.json has neither "rope_parameters" nor "rope_theta"; add the base that the model was trained with '
            '("rope_theta": 10000.0 for the first LLaMA models)'
        )
    spelled = [scaling.pop(key, None) for key in ("rope_type", "type")]  # transformers 4 writes both keys
    kind = next(filter(None, spelled), "default")
    part = scaling.pop("partial_rotary_factor", None) or config.get("partial_rotary_factor") or default_share
    found: Settings = {"model_config.rotary_base": theta, "model_config.rotary_percent": part}
    if kind == "default":
        return found
    if kind not in kinds:
        raise ValueError(f"config.json: rope_type {kind!r} is not known; known are {', '.join(kinds)}, default")
    return found | _stretched(kind, scaling, config)


def _stretched(kind: str, scaling: dict[str, Any], config: Mapping[str, Any]) -> Settings:
    if kind == "longrope" and config.get("original_max_position_embeddings"):
        scaling["original_max_position_embeddings"] = config["original_max_position_embeddings"]
    _check(kind, scaling)
    if kind == "linear":
        return {"model_config.rotary_seq_len_interpolation_factor": scaling["factor"]}
    found: Settings = {"model_config.rope_scaling.type": kind}
    for name in _SCALINGS[kind]:
        if scaling.get(_KEYS.get(name, name)) is not None:
            found[f"model_config.rope_scaling.{name}"] = scaling[_KEYS.get(name, name)]
    if kind != "dynamic":
        found.setdefault(
            "model_config.rope_scaling.original_max_position_embeddings", config.get("max_position_embeddings")
        )
    if scaling.get("attention_factor") is not None:
        found["model_config.rope_scaling.mscale"] = _mscale(scaling)
    if kind == "yarn":
        found["model_config.multi_latent_attention.rotary_scaling_factor"] = scaling["factor"]
    return found


def _mscale(scaling: Mapping[str, Any]) -> float:
    """The mscale with which yarn gives the `attention_factor` in the file; 1 where the file has the factor that follows
    anyway. Raises ValueError if the file has an mscale of its own, too."""
    if scaling.get("mscale") or scaling.get("mscale_all_dim"):
        raise ValueError("config.json: attention_factor beside mscale of rope_type 'yarn' is not known here")
    found = float((scaling["attention_factor"] - 1.0) / (yarn_magnitude(scaling["factor"], 1.0) - 1.0))
    return 1.0 if abs(found - 1.0) < 1e-9 else found


def _check(kind: str, scaling: Mapping[str, Any]) -> None:
    """Raise ValueError for numbers of a kind of stretching that are not known, or that act otherwise in transformers
    than here."""
    given = {name for name, value in scaling.items() if value is not None}
    known = (*(_KEYS.get(name, name) for name in _SCALINGS[kind]), *("attention_factor",) * (kind == "yarn"))
    unknown = sorted(given - {*known, "finetuned"})
    if unknown:
        raise ValueError(f"config.json: {unknown[0]} of rope_type {kind!r} is not known here; known are {known}")
    if (scaling.get("mscale") or 1.0) != 1.0 and not scaling.get("mscale_all_dim"):
        raise ValueError(
            "config.json: mscale does nothing in transformers without mscale_all_dim; remove it or add that"
        )
    if scaling.get("mscale_all_dim") and not scaling.get("mscale"):
        raise ValueError("config.json: mscale_all_dim without mscale is not known here")


_TRUNCATES = "yarn_correction_range_round_to_int"
_KEYS = {_TRUNCATES: "truncate"}
"""Our name of a stretching's number -> the key, where they differ."""
_SCALINGS = {
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": (
        "factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "original_max_position_embeddings",
        _TRUNCATES,
    ),
    "dynamic": ("factor", "original_max_position_embeddings"),
    "linear": ("factor",),
    "longrope": ("short_factor", "long_factor", "original_max_position_embeddings"),
}
"""Kind of stretching -> names of its numbers."""
_MOST = tuple(kind for kind in _SCALINGS if kind != "longrope")


def _rope_out(ours: Settings) -> Mapping[str, Any]:
    theta, kind = ours["model_config.rotary_base"], ours.get("model_config.rope_scaling.type")
    factor = ours.get("model_config.rotary_seq_len_interpolation_factor")
    scaling: dict[str, Any] = {}
    if kind is not None:
        numbers = {name: ours.get(f"model_config.rope_scaling.{name}") for name in _SCALINGS[kind]}
        if kind == "yarn" and ours.get("model_config.multi_latent_attention.enabled"):
            numbers["factor"] = ours["model_config.multi_latent_attention.rotary_scaling_factor"]
        if kind in ORIGINAL_LENGTHS:  # transformers' default is max_position_embeddings
            numbers["original_max_position_embeddings"] = (
                numbers["original_max_position_embeddings"] or ORIGINAL_LENGTHS[kind]
            )
        if kind == "yarn" and not numbers.get("mscale_all_dim"):
            mscale, _ = numbers.pop("mscale"), numbers.pop("mscale_all_dim")
            if mscale is not None and mscale != 1.0:
                scaling["attention_factor"] = yarn_magnitude(numbers["factor"] or 1.0, mscale)
        if numbers.get(_TRUNCATES):
            del numbers[_TRUNCATES]
        said = {_KEYS.get(name, name): value for name, value in numbers.items() if value is not None}
        scaling = {"rope_type": kind, **said, **scaling}
    elif factor is not None:
        scaling = {"rope_type": "linear", "factor": factor}
    return {
        "rope_theta": theta,
        "rope_scaling": scaling or None,
        "rope_parameters": {"rope_type": "default", **scaling, "rope_theta": theta},
    }


def rope(partial: bool = False, default_share: float = 1.0, kinds: tuple[str, ...] = _MOST) -> Group:
    """The row for the base of rotary positions and their stretching. kinds: the kinds of stretching that are
    accepted; reading raises ValueError for another. partial: whether only a part of each head's channels may rotate
    (else reading raises ValueError for a part). default_share: the part of them that rotates where no key says it."""

    def read(config: Mapping[str, Any]) -> Settings:
        found = _rope(config, default_share, kinds)
        part = found["model_config.rotary_percent"]
        if part != 1.0 and not partial:
            raise ValueError(
                f"config.json: partial_rotary_factor {part}: transformers' models of this type turn all channels"
            )
        return found

    def write(ours: Settings) -> Mapping[str, Any]:
        written, kind = _rope_out(ours), ours.get("model_config.rope_scaling.type")
        if kind is not None and kind not in kinds:
            raise ValueError(f"--rope-scaling-type {kind}: its config.json can only say {', '.join(kinds)}")
        share = {"partial_rotary_factor": ours["model_config.rotary_percent"]} if partial else {}
        return {**written, **share, "rope_parameters": {**written["rope_parameters"], **share}}

    keys = "rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor", "max_position_embeddings"
    return Group((*keys, "original_max_position_embeddings"), read, write)


ROPE = rope()
_LOCAL = "model_config.sliding_window.local_rotary_base"
_WINDOWED, _OTHER = "sliding_attention", "full_attention"


def of_windows(own_base: float | None = None) -> Group:
    """The row for base and stretching where layers with a window are not stretched and may have a base of their own.
    own_base: theirs where config.json has no key for it; None: the other layers' base. Null under the key
    `rope_local_base_freq` stands for the other layers' base, too. Both spellings are read and written: transformers 5
    has rotary positions by kind of layer, 4 a second base."""

    def read(config: Mapping[str, Any]) -> Settings:
        by_kind = config.get("rope_parameters") or {}
        local = by_kind.get(_WINDOWED) or {}
        if local.get("rope_type", "default") != "default":
            raise ValueError(f"config.json: rope_type {local['rope_type']!r} of windowed layers is not known here")
        found = ROPE.to_ours({**config, "rope_parameters": by_kind.get(_OTHER, by_kind)})
        base = found["model_config.rotary_base"]
        own = local.get("rope_theta") or config.get("rope_local_base_freq", own_base) or base
        is_stretched = len(found) > len(ROPE.to_ours({"rope_theta": base}))
        return found | {_LOCAL: own if own != base or is_stretched else None}

    def write(ours: Settings) -> Mapping[str, Any]:
        written, local = ROPE.to_theirs(ours), ours.get(_LOCAL) or ours["model_config.rotary_base"]
        by_kind = {_OTHER: written["rope_parameters"], _WINDOWED: {"rope_type": "default", "rope_theta": local}}
        return {**written, "rope_local_base_freq": local, "rope_parameters": by_kind}

    return Group((*ROPE.keys, "rope_local_base_freq"), read, write)
