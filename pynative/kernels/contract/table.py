"""Tables of operators by name."""

from collections.abc import Callable
from typing import Any

Operator = Callable[..., Any]
Table = dict[str, Operator]


def table(*operators: Operator) -> Table:
    """The operators by their own names, which are those of the contract."""
    return {operator.__name__: operator for operator in operators}
