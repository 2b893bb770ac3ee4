"""The import graph of the three packages, as data."""

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("mapping", "parallel_core", "pynative")


def modules() -> dict[str, Path]:
    """Dotted name -> file of every module of the three packages; a package's name stands for its `__init__`."""
    named = {}
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            parts = file.relative_to(ROOT).with_suffix("").parts
            named[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return named


def imports(file: Path, known: Iterable[str]) -> set[str]:
    """The modules among `known` that a file imports, anywhere in it, for types only or not."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            whole = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in known else node.module for name in whole}
    return found & set(known)


@cache
def import_graph() -> dict[str, set[str]]:
    """Module -> the modules it imports."""
    named = modules()
    return {name: imports(file, named) - {name} for name, file in named.items()}


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The strongly connected components of more than one node (Tarjan, 1972)."""
    index: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = lowest[node] = len(index)
        stack.append(node)
        for neighbour in graph[node]:
            if neighbour not in index:
                visit(neighbour)
            if neighbour in stack:
                lowest[node] = min(lowest[node], lowest[neighbour])
        if lowest[node] == index[node]:
            component = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(component) > 1:
                found.append(sorted(component))

    for node in graph:
        if node not in index:
            visit(node)
    return found


def room(module: str) -> str:
    """A module's place in its package: its first two names, such as "pynative.moe"."""
    return ".".join(module.split(".")[:2])


def arrows() -> Iterator[tuple[str, str, str, str]]:
    """(room, imported room, module, imported module) of every import that leaves a room, within one package."""
    for module, imported in import_graph().items():
        for other in sorted(imported):
            same_package = module.split(".")[0] == other.split(".")[0]
            if same_package and room(module) != room(other) and module.count(".") and other.count("."):
                yield room(module), room(other), module, other


def _function_nodes(file: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def functions(file: Path) -> Iterator[tuple[str, int]]:
    """(name, lines) of every function in a file."""
    for node in _function_nodes(file):
        yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def undocumented(file: Path) -> Iterator[tuple[int, str]]:
    """(line, name) of every function in a file, methods too, that has no docstring."""
    for node in _function_nodes(file):
        if not ast.get_docstring(node):
            yield node.lineno, node.name


def docstrings(file: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of each docstring in a file: of the module, classes and functions, and below attributes."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        body = getattr(node, "body", None)
        for entry in body if isinstance(body, list) else []:
            value = entry.value if isinstance(entry, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield entry.lineno, value.value.strip()
