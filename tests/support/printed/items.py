"""The keys, flags and names that a document's block holds, by the grammar of its language."""

from __future__ import annotations

import ast
import builtins
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

import yaml

from tests.support.printed.blocks import Block, without_dots

_LOOKED_INTO = ("config.", "all_config.", "ms.", "model.")
"""Beginnings of dotted names whose attributes are names of the documented system."""


def items(block: Block, defined: Collection[str] = ()) -> list[str]:
    """The items of a block to look up, in order, none twice, without names that the document's own blocks define
    (`defined`)."""
    found = dict.fromkeys(_ITEMS[block.language](block.text))
    return [item for item in found if item.partition("(")[0] not in defined]


def defined_names(texts: Iterable[str]) -> set[str]:
    """The names that the Python blocks of a document define, at any depth."""
    return set().union(*(_defined(ast.parse(without_dots(text))) for text in texts))


def yaml_content(text: str) -> Any:
    """The parsed content of a YAML block."""
    return yaml.safe_load(without_dots(text))


def json_content(text: str) -> Any:
    """The parsed content of a JSON block with comments, bare `auto` and missing outer braces."""
    plain = re.sub(r"//.*", "", text)
    plain = re.sub(r":\s*auto\b", ': "auto"', plain)
    plain = re.sub(r",(\s*)$", r"\1", plain)
    return json.loads(plain if plain.lstrip().startswith("{") else "{" + plain + "}")


def keys(content: Any, path: str = "") -> Iterator[str]:
    """The path `a.b.c` of each entry without entries of its own; `a[0].b` in a list of dictionaries."""
    if isinstance(content, Mapping) and content:
        for key, value in content.items():
            yield from keys(value, f"{path}.{key}" if path else str(key))
    elif isinstance(content, list) and content and all(isinstance(entry, Mapping) for entry in content):
        for position, entry in enumerate(content):
            yield from keys(entry, f"{path}[{position}]")
    else:
        yield path


def empty_keys(content: Any) -> set[str]:
    """The paths of the entries whose value is None."""
    inner = content.items() if isinstance(content, Mapping) else ()
    return {path for key, value in inner for path in ([key] if value is None else _under(key, empty_keys(value)))}


def _under(key: str, paths: Iterable[str]) -> list[str]:
    return [f"{key}.{path}" for path in paths]


def shell_items(text: str) -> Iterator[str]:
    """The exported variables, scripts started by bash, flags, and options of msrun (as `msrun --option`) of a shell
    block."""
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if words[:1] == ["export"]:
            yield words[1].partition("=")[0]
        elif words[:1] == ["bash"]:
            yield words[1]
        else:
            command = "msrun " if words[:1] == ["msrun"] else ""
            yield from (command + word.partition("=")[0] for word in words if word.startswith("--"))


def python_items(text: str) -> Iterator[str]:
    """The imports of a Python block as `module.name`, names that nothing defines, attributes of config objects, and
    calls of imported or undefined names."""
    tree = ast.parse(without_dots(text))
    imported = dict(_imports(tree))
    yield from imported.values()
    free = dict.fromkeys(_free_names(tree))
    yield from free
    for node in ast.walk(tree):
        name = _dotted(node)
        if name.startswith(_LOOKED_INTO) and not _is_inner(node, tree):
            yield name
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in imported | free:
            yield _call(node, node.func.id)


def _call(node: ast.Call, name: str) -> str:
    """A call as `name(_, _, keyword=)`: a _ for each positional value, and the keywords."""
    keywords = [f"{keyword.arg}=" for keyword in node.keywords if keyword.arg]
    return f"{name}({', '.join(['_'] * len(node.args) + keywords)})"


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(name in the block, full name of what is imported) of each import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.asname or alias.name, alias.name) for alias in node.names)


def _free_names(tree: ast.Module) -> Iterator[str]:
    """The names that a block uses and neither imports nor defines, builtins left out."""
    known = {*vars(builtins), *dict(_imports(tree)), *_defined(tree)}
    names = (node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    yield from (name for name in names if name not in known)


def _defined(tree: ast.Module) -> set[str]:
    """The names of functions, classes, parameters and variables that a tree defines."""
    nodes = list(ast.walk(tree))
    return {
        *(node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)),
        *(node.arg for node in nodes if isinstance(node, ast.arg)),
        *(node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)),
    }


def _dotted(node: ast.AST) -> str:
    """`a.b.c` of a name or of attributes of a name, "" for another expression."""
    if isinstance(node, ast.Name):
        return node.id
    inner = _dotted(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{inner}.{node.attr}" if inner else ""  # type: ignore[attr-defined]


def _is_inner(node: ast.AST, tree: ast.AST) -> bool:
    """Whether the node is the beginning of a longer dotted name in the tree."""
    return any(isinstance(outer, ast.Attribute) and outer.value is node for outer in ast.walk(tree))


_ITEMS = {
    "yaml": lambda text: keys(yaml_content(text)),
    "json": lambda text: keys(json_content(text)),
    "bash": shell_items,
    "python": python_items,
    "text": lambda text: ["text"],
}
