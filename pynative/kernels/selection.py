"""Which function an operator is: ordered stacks of layers of implementations, the first layer that has it wins.

A layer is a module with a table `OPERATORS`. A stack may begin with one whose operators are switched by flags: fused
kernels of a device, or on a CPU forms that keep little memory; its module has `forms(input_layout)`, a table too.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module

from parallel_core.config.fused import FusedOperators
from pynative.kernels.contract import CONTRACT
from pynative.kernels.contract.table import Table


@dataclass(frozen=True)
class Stack:
    """Names of modules below `pynative.kernels`."""

    layers: tuple[str, ...]
    forms: str | None = None
    """The module of the forms that flags switch on."""

    def tables(self, fused: FusedOperators) -> list[Table]:
        """The layers' operators, those that are switched on in front."""
        layers = [_module(layer).OPERATORS for layer in self.layers]
        if self.forms is None:
            return layers
        forms: Table = _module(self.forms).forms(fused.input_layout)
        return [{name: form for name, form in forms.items() if fused.has(name)}, *layers]


def _module(name: str):
    return import_module(f"pynative.kernels.{name}")


STACKS: dict[tuple[str, str], Stack] = {
    ("host", "CPU"): Stack(layers=("host",)),
    ("ops", "CPU"): Stack(layers=("ops.widened",), forms="ops.frugal"),
    ("ops", "Ascend"): Stack(layers=("ascend", "ops"), forms="ascend.fused"),
}
"""(implementation, device) -> its stack. A device's first implementation is its default."""


def implementation_on(device: str, wanted: str | None) -> str:
    """The implementation that is wanted, or the device's default; a ValueError where it doesn't exist."""
    offered = [name for name, target in STACKS if target == device]
    chosen = wanted or next(iter(offered), "none")
    if chosen not in offered:
        raise ValueError(f"kernels {chosen!r} don't exist for {device}: choose one of {', '.join(offered) or 'none'}")
    return chosen


def merged(tables: Sequence[Table]) -> Table:
    """Every operator of the contract from the first table that has it; it is an error of ours if none has."""
    operators: Table = {}
    for layer in reversed(tables):
        operators |= layer
    _check_names(operators)
    return {name: operators[name] for name in CONTRACT}


def _check_names(operators: Iterable[str]) -> None:
    missing, unknown = set(CONTRACT) - set(operators), set(operators) - set(CONTRACT)
    assert not missing, f"this stack of kernels has no {', '.join(sorted(missing))}"
    assert not unknown, f"not in the contract of kernels: {', '.join(sorted(unknown))}"
