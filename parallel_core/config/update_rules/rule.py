"""An optimizer without its arithmetic: its options, its states, the parameters that it updates."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from parallel_core.buffers.layout import Entry
from parallel_core.config.base import Config
from parallel_core.findings import Finding
from parallel_core.messages import Message
from parallel_core.sharding import Coordinates, ShardSpec

MOMENTUM = "momentum_buffer"
"""Name of a state that is an average or sum of gradients, and a rule's only one."""


@dataclass(frozen=True, kw_only=True)
class UpdateRule:
    """One optimizer without its arithmetic: its section of options, its states (`moments`), the parameters that it
    updates (`treats`), the rule for all others (`rest`), findings about its options, and messages of its update. Its
    name is also that of the field of `OptimizerConfig` with its options, and the key of its update in a table of
    `pynative.optimizer.updates`."""

    name: str
    """Its name as a value of --optimizer."""
    options: type[Config]
    """The section of its options."""
    moments: Callable[[Any], dict[str, str]]
    """Its options -> {name of a state: type}, for the states of each element beside the weight."""
    other_names: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Other values of --optimizer for it -> {option: value} that they set where that option is at its default."""
    sharing_names: tuple[str, ...] = ()
    """The names of `other_names` that also ask for the distributed optimizer."""
    asked_by: str = ""
    """The flag and value that select it, for messages; "": --optimizer and its name."""
    exclusive: tuple[str, ...] = ()
    """Names of its options that are refused where --optimizer names another rule."""
    is_elementwise: bool = True
    """Whether the update of an element needs that element alone; else a whole parameter is updated at once."""
    rate_by_width: tuple[int, int] = (-1, 0)
    """Exponents of mu-P's width multiplier in the learning rate of matrices between embedding and output layer, and of
    everything else."""
    treats: Callable[[ShardSpec], bool] = lambda spec: True
    """Whether it updates a parameter, by its spec."""
    treated: str = "parameters"
    """The kind of parameters that it updates, for messages."""
    rest: Callable[[Any], str] | None = None
    """Its options -> the name of the rule that updates all other parameters; None: there are none."""
    megatrons_states: tuple[str, ...] = ()
    """Names of its states that Megatron's checkpoints have under the same names; empty: states are not converted."""
    findings: Callable[[Any], Iterator[Finding]] = lambda sections: iter(())
    """`Sections` -> findings about its options that do not go together with other sections."""
    messages: Callable[[Entry, Any, Coordinates], Iterator[Message]] = lambda entry, options, coordinates: iter(())
    """(Entry of a buffer, options, coordinates of a rank) -> the messages of the update of one parameter on it."""
