"""Every key, flag and name that a block holds, taken from it by its language's grammar."""

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
"""Objects whose attributes are names of the system."""


def items(block: Block, defined: Collection[str] = ()) -> list[str]:
    """The names to look up, in order, none twice; names that other blocks define (`defined`) are left out."""
    found = dict.fromkeys(_ITEMS[block.language](block.text))
    return [item for item in found if item.partition("(")[0] not in defined]


def defined_names(texts: Iterable[str]) -> set[str]:
    """The names that the Python blocks of a document define, at any depth."""
    return set().union(*(_defined(ast.parse(without_dots(text))) for text in texts))


def yaml_content(text: str) -> Any:
    return yaml.safe_load(without_dots(text))


def json_content(text: str) -> Any:
    """A block of JSON with comments, bare words and without its outer braces."""
    plain = re.sub(r"//.*", "", text)
    plain = re.sub(r":\s*auto\b", ': "auto"', plain)
    plain = re.sub(r",(\s*)$", r"\1", plain)
    return json.loads(plain if plain.lstrip().startswith("{") else "{" + plain + "}")


def keys(content: Any, path: str = "") -> Iterator[str]:
    """`a.b.c` for each entry that holds no others; `a[0].b` for those of lists."""
    if isinstance(content, Mapping) and content:
        for key, value in content.items():
            yield from keys(value, f"{path}.{key}" if path else str(key))
    elif isinstance(content, list) and content and all(isinstance(entry, Mapping) for entry in content):
        for position, entry in enumerate(content):
            yield from keys(entry, f"{path}[{position}]")
    else:
        yield path


def empty_keys(content: Any) -> set[str]:
    """The entries that have no value."""
    inner = content.items() if isinstance(content, Mapping) else ()
    return {path for key, value in inner for path in ([key] if value is None else _under(key, empty_keys(value)))}


def _under(key: str, paths: Iterable[str]) -> list[str]:
    return [f"{key}.{path}" for path in paths]


def shell_items(text: str) -> Iterator[str]:
    """Flags, environment variables, options of msrun, scripts that are started."""
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
    """`module.name` for each import, names that nothing defines, attributes of configs, calls of the former."""
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
    """`name(_, _, keyword=)`: how many values by place, and the keywords."""
    keywords = [f"{keyword.arg}=" for keyword in node.keywords if keyword.arg]
    return f"{name}({', '.join(['_'] * len(node.args) + keywords)})"


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Name in the block -> what it is."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.asname or alias.name, alias.name) for alias in node.names)


def _free_names(tree: ast.Module) -> Iterator[str]:
    known = {*vars(builtins), *dict(_imports(tree)), *_defined(tree)}
    names = (node.id for node in ast.walk(tree) if isinstance(node, ast.Name))
    yield from (name for name in names if name not in known)


def _defined(tree: ast.Module) -> set[str]:
    nodes = list(ast.walk(tree))
    return {
        *(node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)),
        *(node.arg for node in nodes if isinstance(node, ast.arg)),
        *(node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)),
    }


def _dotted(node: ast.AST) -> str:
    """`a.b.c` for an attribute of an attribute of a name, else nothing."""
    if isinstance(node, ast.Name):
        return node.id
    inner = _dotted(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{inner}.{node.attr}" if inner else ""  # type: ignore[attr-defined]


def _is_inner(node: ast.AST, tree: ast.AST) -> bool:
    """Whether a longer dotted name begins with this one."""
    return any(isinstance(outer, ast.Attribute) and outer.value is node for outer in ast.walk(tree))


_ITEMS = {
    "yaml": lambda text: keys(yaml_content(text)),
    "json": lambda text: keys(json_content(text)),
    "bash": shell_items,
    "python": python_items,
    "text": lambda text: ["text"],
}
