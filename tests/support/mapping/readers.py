"""The config fields that the engine and the plan read: found in their syntax trees, none listed by hand.

`owner.field` counts for the section that `owner` is: by its name (`config.training_config.seed`), by what a name was
assigned from (`training = config.training_config`), or by the annotation of a parameter (`config: OptimizerConfig`).
A bare `config` without annotation may be any section. Everything else of the same name counts for none.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from parallel_core.config.tree import SECTIONS
from parallel_core.data.tokenizers.base import TokenizerOptions
from parallel_core.recompute.plan import BY_STAGE, PATTERNS
from tests.support.assets import ROOT

ANY = "any section"

_PATHS = {path.rpartition(".")[2]: path for path in SECTIONS} | {"moe": "moe_config"}
"""Last part of a section's path, and the attribute under which cells keep a section -> the section's path."""
_CLASSES = {cls.__name__: path for path, cls in SECTIONS.items()}
_CLASSES |= {"TransformerConfig": "model_config", "ModelParallelConfig": "parallel_config"}
_CLASSES |= {"OffloadSettings": "recompute_config", "RecomputeSettings": "recompute_config"}
_CLASSES |= {"BatchSettings": "dataset_config"}
_CLASSES |= {"ModelSizes": "model_config", "PipelineSizes": "parallel_config", "SequenceSizes": "parallel_config"}

BY_NAME = {
    "recompute_config": {*BY_STAGE, *(f"{name}_exclude" for name in PATTERNS)},
    "dataset_config.tokenizer": {field.name for field in fields(TokenizerOptions)},
}
"""Section -> its fields that code reads by `getattr` from the imported lists of names."""

FILLS = {"fused_operators": "fused"}
"""Property of a config section -> the attribute of another section that `AllConfig` fills from it."""

Names = dict[str, str]


def files() -> list[Path]:
    """The source files of the engine and the plan, without the config classes but for those that prepare a device and
    list optimizers' states."""
    core = ROOT / "parallel_core"
    plan = [file for file in core.rglob("*.py") if "config" not in file.relative_to(ROOT).parts]
    return [
        *(ROOT / "pynative").rglob("*.py"),
        *plan,
        core / "config/fused.py",
        *(core / "config/update_rules").glob("*.py"),
    ]


def _section(owner: ast.expr, names: Names) -> str | None:
    """The path of the section that an expression is (ANY for a bare `config`), None if it is none."""
    last = owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
    if isinstance(owner, ast.Name) and last in names:
        return names[last]
    return _PATHS.get(last) or (ANY if last in ("config", "_config") else None)


def _annotated(function: ast.FunctionDef) -> Names:
    """Parameter -> the section that its annotation names, "" for another annotation."""
    found = {}
    for argument in (*function.args.args, *function.args.kwonlyargs):
        if argument.annotation is not None:
            words = [node.id for node in ast.walk(argument.annotation) if isinstance(node, ast.Name)]
            found[argument.arg] = next((_CLASSES[word] for word in words if word in _CLASSES), "")
    return found


def _assigned(tree: ast.AST, names: Names) -> Names:
    """`names` and, besides, each name in the tree that is assigned a section -> that section."""
    found = dict(names)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                many = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
                many = many and not any(isinstance(value, ast.Starred) for value in (*target.elts, *node.value.elts))
                pairs = zip(target.elts, node.value.elts, strict=True) if many else [(target, node.value)]
                for name, value in pairs:
                    section = _section(value, found)
                    if isinstance(name, ast.Name) and section not in (None, ANY):
                        found[name.id] = section
    return found


def _reads(tree: ast.AST, names: Names) -> Iterator[tuple[str, str]]:
    """(section, attribute) of each attribute that a tree reads from a section; `names` are the known names of
    sections."""
    for node in ast.iter_child_nodes(tree):
        inner = _assigned(node, names | _annotated(node)) if isinstance(node, ast.FunctionDef) else names
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            section = _section(node.value, names)
            if section:
                yield section, node.attr
        yield from _reads(node, inner)


DERIVING = ("derive", "rules")
"""Methods of config classes that derive and check fields, which does not count as reading them."""


def _methods() -> Iterator[tuple[str, str, ast.FunctionDef]]:
    """(section, method's name, function that reads fields when the method is called): the method itself, and each
    function of its file that takes the section."""
    for file in (ROOT / "parallel_core" / "config").glob("*.py"):
        body = ast.parse(file.read_text(encoding="utf-8")).body
        given = [node for node in body if isinstance(node, ast.FunctionDef)]
        for cls in body:
            if isinstance(cls, ast.ClassDef) and cls.name in _CLASSES:
                section = _CLASSES[cls.name]
                methods = [m for m in cls.body if isinstance(m, ast.FunctionDef) and m.name not in DERIVING]
                helpers = [function for function in given if section in _annotated(function).values()]
                yield from ((section, m.name, function) for m in methods for function in (m, *helpers))


def reads() -> dict[str, set[str]]:
    """Section, or ANY -> names of its attributes that the engine or the plan reads, directly or through a config
    class's method."""
    found = defaultdict(set)
    for file in files():
        for section, name in _reads(ast.parse(file.read_text(encoding="utf-8")), {}):
            found[section].add(name)
    for section, names in BY_NAME.items():
        found[section] |= names
    before = -1
    while before != (before := sum(map(len, found.values()))):  # a method may be called by others alone
        for section, method, function in _methods():
            if FILLS.get(method, method) in set().union(*found.values()):
                for owner, name in _reads(function, {"self": section}):
                    found[owner].add(name)
    return found


def is_read(target: str, found: dict[str, set[str]]) -> bool:
    """Whether a field, such as `model_config.fa_config.input_layout`, is read."""
    section, _, name = target.rpartition(".")
    return name in found[section] or name in found[ANY]
