"""One row: a condition under which options do nothing."""

from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple

from parallel_core.config.all import AllConfig
from parallel_core.config.tree import FLAG_OF, path_of

_IN_FLOAT32 = "attention's scores and softmax are float32 always"
_RECORDED = "MindSpore's profiler records it whenever it records"

_REASONS = {
    "next_tokens": "the model is causal: a query sees no token after its own",
    "apply_query_key_layer_scaling": (
        "attention's scores are float32, where dividing by the layer's number and back changes nothing"
    ),
    "attention_softmax_in_fp32": _IN_FLOAT32,
    "masked_softmax_fusion": _IN_FLOAT32,
    "fp16_lm_cross_entropy": (
        "cross entropy takes logits in their own type and computes in float32, as Megatron-Core's does"
    ),
    "transformer_impl": f"there is one implementation; what Megatron's two differ in: {_IN_FLOAT32}",
    "longrope_freqs_type": "both forms give the same angles",
    "instruction.pack": "conversations are packed when the data are made",
    "enable_thinking": "thoughts are written when the data are made",
    **dict.fromkeys(("profile_framework", "profile_communication", "profile_op_time"), _RECORDED),
}
ALWAYS = {path_of(name): reason for name, reason in _REASONS.items()}
"""Path -> why it does nothing, whatever is beside it."""


class Idle(NamedTuple):
    """Options that do nothing under a condition."""

    options: str
    """The ends of their paths, with spaces between."""
    is_idle: Callable[[AllConfig], object]
    reason: str
    of_lengths: bool = False
    """Whether that is so by the length of a run's sequences: in another run of the model it may not be."""

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of the options."""
        return _paths(self.options)


@cache
def _paths(options: str) -> tuple[str, ...]:
    return tuple(path_of(name) for name in options.split())


def where(name: str, *values: Any) -> Callable[[AllConfig], bool]:
    """The condition that an option, the end of whose path is `name`, has one of these values."""
    value = attrgetter(path_of(name))
    return lambda config: value(config) in values


def unless(name: str, *values: Any) -> Callable[[AllConfig], bool]:
    """The condition that it has another value than these; without any, that it asks for nothing."""
    value = attrgetter(path_of(name))
    return lambda config: value(config) not in values if values else not value(config)


def all_of(*conditions: Callable[[AllConfig], bool]) -> Callable[[AllConfig], bool]:
    """The condition that all of these hold."""
    return lambda config: all(holds(config) for holds in conditions)


def needs(switch: str, options: str, *values: Any) -> Idle:
    """Options that do nothing unless another, the end of whose path is `switch`, asks for something, or has one of
    these values."""
    reason = " ".join((FLAG_OF[path_of(switch)], *(" or ".join(map(str, values)),) * bool(values)))
    return Idle(options, unless(switch, *values), f"needs {reason}")


def below(section: type, *but: str) -> str:
    """The options of a section, without some, as a row names them."""
    return " ".join(name for name in section.__dataclass_fields__ if name not in but)  # type: ignore[attr-defined]
