"""A condition under which options do nothing, as a row."""

from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple

from parallel_core.config.all import AllConfig
from parallel_core.config.tree import FLAG_OF, path_of

_IN_FLOAT32 = "attention's scores and softmax are float32 always"
_RECORDED = "MindSpore's profiler always records this"

_REASONS = {
    "next_tokens": "the model is causal: a query sees no token after its own",
    "apply_query_key_layer_scaling": (
        "attention's scores are float32, so that dividing by the layer's number and multiplying again changes nothing"
    ),
    "attention_softmax_in_fp32": _IN_FLOAT32,
    "masked_softmax_fusion": _IN_FLOAT32,
    "fp16_lm_cross_entropy": (
        "cross entropy takes logits in their own type and computes in float32, as Megatron-Core's does"
    ),
    "transformer_impl": f"there is one implementation of layers, in which {_IN_FLOAT32}",
    "longrope_freqs_type": "mul and outer give the same angles",
    "instruction.pack": "conversations are packed when the data are made",
    "enable_thinking": "thoughts are written when the data are made",
    **dict.fromkeys(("profile_framework", "profile_communication", "profile_op_time"), _RECORDED),
}
ALWAYS = {path_of(name): reason for name, reason in _REASONS.items()}
"""Path of an option -> the reason why it never does anything."""


class Idle(NamedTuple):
    """Options (their names, separated by spaces) that do nothing where `is_idle` of the configuration is true, and the
    reason. of_lengths: the condition depends on the length of a run's sequences."""

    options: str
    """The options' names, separated by spaces: each the end of its path."""
    is_idle: Callable[[AllConfig], object]
    reason: str
    of_lengths: bool = False
    """Whether the condition depends on the length of a run's sequences, so that another run of the model may use the
    option."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The full path of each option in `options`, in their order."""
        return _paths(self.options)


@cache
def _paths(options: str) -> tuple[str, ...]:
    return tuple(path_of(name) for name in options.split())


def where(name: str, *values: Any) -> Callable[[AllConfig], bool]:
    """The condition that the option `name`, the end of a path, has one of these values."""
    value = attrgetter(path_of(name))
    return lambda config: value(config) in values


def unless(name: str, *values: Any) -> Callable[[AllConfig], bool]:
    """The condition that the option `name`, the end of a path, has none of these values; if none are given, that it is
    off, None, 0 or empty."""
    value = attrgetter(path_of(name))
    return lambda config: value(config) not in values if values else not value(config)


def all_of(*conditions: Callable[[AllConfig], bool]) -> Callable[[AllConfig], bool]:
    """The condition that all of these conditions hold."""
    return lambda config: all(holds(config) for holds in conditions)


def needs(switch: str, options: str, *values: Any) -> Idle:
    """The row of options that do nothing unless the option `switch`, the end of a path, is on or, where values are
    given, has one of these."""
    reason = " ".join((FLAG_OF[path_of(switch)], *(" or ".join(map(str, values)),) * bool(values)))
    return Idle(options, unless(switch, *values), f"needs {reason}")


def below(section: type, *but: str) -> str:
    """The names of all fields of a section, except `but`, separated by spaces as `Idle.options` has them."""
    return " ".join(name for name in section.__dataclass_fields__ if name not in but)  # type: ignore[attr-defined]
