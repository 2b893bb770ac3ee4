"""Every stack of kernels has every operator of the contract, with the contract's arguments.

An Ascend's stack is looked at without an Ascend: what its operators do is another test's matter.
"""

import ast
from inspect import Parameter, signature
from pathlib import Path

import pytest

from parallel_core.config.fused import NAMES, NOTHING_FUSED, FusedOperators
from pynative import kernels
from pynative.kernels import selection
from pynative.kernels.contract import CONTRACT

ROOT = Path(__file__).resolve().parents[3]
EVERYTHING_FUSED = FusedOperators(tuple(NAMES))
STACKS = [
    pytest.param(stack, fused, id=f"{'-'.join(key)}-{'fused' if fused.operators else 'plain'}")
    for key, stack in selection.STACKS.items()
    for fused in (NOTHING_FUSED, EVERYTHING_FUSED)
]


def arguments(operator) -> list[tuple[str, Parameter.kind, object]]:
    """(name, kind, default) of each of an operator's arguments, in order."""
    return [(p.name, p.kind, p.default) for p in signature(operator).parameters.values()]


@pytest.mark.parametrize(("stack", "fused"), STACKS)
def test_every_stack_has_the_contract(stack, fused):
    """Each operator of the contract is in the stack and has the contract's arguments."""
    operators = selection.merged(stack.tables(fused))
    assert list(operators) == list(CONTRACT)
    assert {name: arguments(operator) for name, operator in operators.items()} == {
        name: arguments(operator) for name, operator in CONTRACT.items()
    }


@pytest.mark.parametrize("fused", [NOTHING_FUSED, EVERYTHING_FUSED], ids=["plain", "fused"])
@pytest.mark.parametrize("operator", CONTRACT)
@pytest.mark.parametrize("key", selection.STACKS, ids="-".join)
def test_a_stack_without_an_operator_is_not_selected(key, operator, fused, monkeypatch):
    """Selecting a stack of which one operator, any, is missing from every layer is an error that names it, and leaves
    the selection as it was."""
    layers = selection.STACKS[key].tables(fused)
    without = [{name: form for name, form in layer.items() if name != operator} for layer in layers]
    monkeypatch.setattr(selection.Stack, "tables", lambda self, fused: without)
    before = kernels.active(), getattr(kernels, operator)
    with pytest.raises(AssertionError, match=rf"has no {operator}$"):
        kernels._select(*key, fused)
    assert (kernels.active(), getattr(kernels, operator)) == before, "half of a stack was selected"


def test_an_operator_that_the_contract_does_not_know_is_refused():
    """`merged` refuses a table with an operator outside the contract with an AssertionError that names it."""
    with pytest.raises(AssertionError, match="not in the contract of kernels: linear_backward"):
        selection.merged([dict(CONTRACT), {"linear_backward": len}])


def test_the_first_layer_wins():
    """An operator that several layers have is the first layer's: an Ascend's layer norm before the composed one, its
    fused RMS norm before both."""
    plain = selection.merged(selection.STACKS["ops", "Ascend"].tables(NOTHING_FUSED))
    fused = selection.merged(selection.STACKS["ops", "Ascend"].tables(EVERYTHING_FUSED))
    modules = [operators[name].__module__ for operators in (plain, fused) for name in ("layer_norm", "rms_norm")]
    ascend, composed = "pynative.kernels.ascend", "pynative.kernels.ops"
    assert modules == [f"{ascend}.always", f"{composed}.norm", f"{ascend}.always", f"{ascend}.fused"]


def test_a_call_reaches_the_selected_operator_without_a_detour():
    """`kernels.linear_forward` is the selected implementation's function itself, not a wrapper."""
    for implementation in ("host", "ops"):
        kernels.use(implementation)
        operators = selection.merged(selection.STACKS[implementation, "CPU"].tables(NOTHING_FUSED))
        assert all(getattr(kernels, name) is operator for name, operator in operators.items())


def test_operators_are_looked_up_when_they_are_called():
    """No source has `from pynative.kernels import` of an operator, which would keep the implementation selected at the
    import."""
    importing = {
        str(file.relative_to(ROOT)): alias.name
        for file in (ROOT / "pynative").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module == "pynative.kernels"
        for alias in node.names
        if alias.name in CONTRACT
    }
    assert importing == {}
