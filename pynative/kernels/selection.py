"""The choice of the function of an operator: ordered stacks of layers of implementations, the first layer that has it
wins.

A layer is a module with a table `OPERATORS`. It may have a function `forms(input_layout)` too, which returns a table of
operators that flags switch on: fused kernels of a device, or on a CPU forms that keep little memory.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

from parallel_core.config.fused import FusedOperators
from pynative.kernels.contract import CONTRACT
from pynative.kernels.contract.table import Table


@dataclass(frozen=True)
class Stack:
    """An ordered stack of layers: names of modules below `pynative.kernels`."""

    layers: tuple[str, ...]

    def tables(self, fused: FusedOperators) -> list[Table]:
        """The tables of the stack's layers in order. A layer that has a function `forms` gives two: a table of its
        forms that are switched on, then its own."""
        tables = []
        for layer in map(_module, self.layers):
            if hasattr(layer, "forms"):
                switched: Table = layer.forms(fused.input_layout)
                tables.append({name: form for name, form in switched.items() if fused.has(name)})
            tables.append(layer.OPERATORS)
        return tables


def _module(name: str) -> ModuleType:
    return import_module(f"pynative.kernels.{name}")


STACKS: dict[tuple[str, str], Stack] = {
    ("host", "CPU"): Stack(("host",)),
    ("ops", "CPU"): Stack(("ops.widened",)),
    ("ops", "Ascend"): Stack(("ascend", "ops")),
}
"""(implementation, device) -> its stack. A device's first implementation is its default."""


def implementation_on(device: str, wanted: str | None) -> str:
    """The implementation `wanted` on a device ("CPU", "Ascend"); the device's default for None or "". Raises ValueError
    if the device has none of that name, or none at all."""
    offered = [name for name, target in STACKS if target == device]
    chosen = wanted or next(iter(offered), "none")
    if chosen not in offered:
        raise ValueError(f"kernels {chosen!r} don't exist for {device}: choose one of {', '.join(offered) or 'none'}")
    return chosen


def merged(tables: Sequence[Table]) -> Table:
    """Name -> function of every operator of the contract, from the first table that has it. Raises AssertionError for
    an operator that no table has, and for a name that the contract does not have."""
    operators: Table = {}
    for layer in reversed(tables):
        operators |= layer
    _check_names(operators)
    return {name: operators[name] for name in CONTRACT}


def _check_names(operators: Iterable[str]) -> None:
    missing, unknown = set(CONTRACT) - set(operators), set(operators) - set(CONTRACT)
    assert not missing, f"this stack of kernels has no {', '.join(sorted(missing))}"
    assert not unknown, f"not in the contract of kernels: {', '.join(sorted(unknown))}"
