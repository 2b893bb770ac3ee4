"""An optimizer as a plan knows it: its options, its states, the parameters that it is for."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from parallel_core.buffers.layout import Entry
from parallel_core.config.base import Config
from parallel_core.findings import Finding
from parallel_core.messages import Message
from parallel_core.sharding import ShardSpec

MOMENTUM = "momentum_buffer"
"""The average or sum of gradients that is the only state of a rule."""


@dataclass(frozen=True, kw_only=True)
class UpdateRule:
    """One optimizer. `OptimizerConfig` has its options in the field of its name, `pynative.optimizer.updates` its
    arithmetic under the same name; nobody else compares names."""

    name: str
    """--optimizer's."""
    options: type[Config]
    """The options that act with it alone."""
    moments: Callable[[Any], dict[str, str]]
    """Its options -> name and type of what it keeps of each element beside the weight."""
    other_names: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Other names of --optimizer for it -> what they mean by options that are at their defaults."""
    sharing_names: tuple[str, ...] = ()
    """The names among them that ask for the distributed optimizer."""
    asked_by: str = ""
    """The flag that selects it, for messages."""
    exclusive: tuple[str, ...] = ()
    """Options that are refused beside another rule; its others have no effect there."""
    is_elementwise: bool = True
    """Whether an element's update needs that element alone; otherwise that of a whole parameter is computed at once."""
    treats: Callable[[ShardSpec], bool] = lambda spec: True
    """Whether it is for a parameter."""
    treated: str = "parameters"
    """The parameters that it is for, for messages."""
    rest: Callable[[Any], str] | None = None
    """Its options -> the name of the rule of all other parameters."""
    megatrons_states: tuple[str, ...] = ()
    """Its states that Megatron's checkpoints have under the same names; with none it is not converted."""
    findings: Callable[[Any], Iterator[Finding]] = lambda sections: iter(())
    """`Sections` -> its options that do not go together with other sections."""
    messages: Callable[[Entry, Any, int], Iterator[Message]] = lambda entry, options, tensor: iter(())
    """(Entry of a buffer, options, tensor-parallel size) -> what the update of a parameter that is cut sends."""
