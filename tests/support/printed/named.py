"""The outcome of a name in a document's Python or shell block: importable here, called with accepted arguments, or
not."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterator
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

from mapping import init_configs_from_args
from mapping.flags import MAPPED, ROWS
from tests.support.assets import ROOT
from tests.support.printed.blocks import python_blocks
from tests.support.printed.configured import ELSE, FLAGS, flag_reading, found
from tests.support.printed.found import ACTS, MISSING, NOTHING, READER, REFUSED, Found
from tests.support.printed.items import python_items

PREFIXES = {
    "mindformers.experimental.parallel_core.pynative": "pynative",
    "mindspeed_ms.training": "pynative.training",
    "mindspeed_ms.legacy.model": "pynative.transformer",
    "mindformers.core.callback.callback": "pynative.training.callbacks",
    "mindformers.wrapper": "pynative.training",
    "mindformers": "pynative.training",
}
"""Prefix of an import in the documents -> the prefix that a user writes in its place."""

SEEN_OF_MSRUN = ("--worker_num", "--local_worker_num", "--master_port", "--log_dir", "--join")
"""Options of msrun whose effect a launch as printed shows: number of ranks, port, logs, a command that waits for its
ranks."""
OF_MSRUN = Found(READER, "of MindSpore's launcher")

WITHOUT_IMPORT = ("mapping", "pynative.training.training", "pynative.training.data", "pynative.training.utils")
"""Modules in which names that document 003 uses without an import are looked for."""

MOMENTUM = ("mindspore.nn.Momentum", "Momentum")
"""MindSpore's own optimizer, which a document makes for a wrapper that is refused here."""

READERS = {
    "002": {"self", "config", "nn", "copy", "callbacks", "GPTTransformerDecoderLayer", *MOMENTUM},
    "003": {"enum", "ms", "_add_pangu_args", "train_valid_test_datasets_provider", "get_batch"},
    "004": {"model"},
}
"""Document -> names that it leaves to its reader: usual imports, and the reader's own functions and objects."""

MIGRATING = ROOT / "docs" / "migrating.md"
_EXAMPLE = ROOT / "examples" / "gpt" / "pretrain_gpt.sh"


def python_found(document: str, item: str) -> Found:
    """The outcome of an item of a Python block: an import, a name, an attribute or a call."""
    name, is_call, arguments = item.partition("(")
    if is_call:
        return _call_found(document, name, arguments.rstrip(")"))
    if name in READERS[document]:
        return Found(READER)
    head, _, rest = name.partition(".")
    if head in ("config", "all_config") and rest:
        return _attribute_found(document, head, rest)
    found = importable(f"mindspore.{rest}" if head == "ms" else name)
    return Found(ACTS, found) if found else _migrated(name)


def importable(name: str) -> str:
    """The import path of a name here, an old prefix replaced by ours; "" if it cannot be imported."""
    for old, ours in PREFIXES.items():
        if name.startswith(f"{old}."):
            name = ours + name.removeprefix(old)
    candidates = [name] if "." in name else [name, *(f"{module}.{name}" for module in WITHOUT_IMPORT)]
    return next((candidate for candidate in candidates if _object(candidate) is not None), "")


@cache
def _object(path: str) -> Any:
    """The module or a module's attribute at the path, None if there is none."""
    module, _, attribute = path.rpartition(".")
    for wanted, inside in ((path, ""), (module, attribute)):
        try:
            found = importlib.import_module(wanted) if wanted else None
            if found is not None and (not inside or hasattr(found, inside)):
                return getattr(found, inside) if inside else found
        except ImportError:
            continue
    return None


def _call_found(document: str, name: str, arguments: str) -> Found:
    """The outcome of a call: `missing` if the callee does not take the printed arguments, `refused` if it refuses one
    of them."""
    if name in READERS[document]:
        return Found(READER)
    full = next((item for item in _names(document) if item == name or item.endswith(f".{name}")), name)
    callee = python_found(document, full)
    if callee.outcome != ACTS:
        return callee
    words = [word for word in arguments.split(", ") if word]
    keywords = {word.rstrip("="): None for word in words if word != "_"}
    try:
        inspect.signature(_object(callee.detail)).bind(*[None] * words.count("_"), **keywords)
    except TypeError as error:
        return Found(MISSING, str(error))
    instead = getattr(_object(callee.detail), "instead", {})
    refused = [f"{word}: {instead[word]}" for word in keywords if word in instead]
    return Found(REFUSED, ", ".join(refused)) if refused else callee


def _names(document: str) -> Iterator[str]:
    """The items of a document's Python blocks that are no calls."""
    for text in python_blocks(document):
        yield from (item for item in python_items(text) if "(" not in item)


@cache
def _config() -> Any:
    """The config of a small command line, in which attributes are looked up."""
    from mapping import parse_args

    return init_configs_from_args(parse_args([*FLAGS.split(), *ELSE.split()], world_size=1))


def _attribute_found(document: str, head: str, rest: str) -> Found:
    """The outcome of an attribute of the config that a script is given; an unknown one in another document than 003 is
    left to the reader, as another system's."""
    where = f"model_config.{rest}" if (document, head) == ("003", "config") else rest
    try:
        value = attrgetter(where)(_config())
    except AttributeError:
        return Found(MISSING) if document == "003" else Found(READER, "of the earlier system's config")
    only = [row for row in ROWS if row.dest == rest and row.status != MAPPED]
    return Found(READER, f"read by the document's own code, {value}") if only else Found(ACTS, where)


def _migrated(name: str) -> Found:
    """The outcome of a name by its row `| old | new | what differs |` in docs/migrating.md: `no-op` if the new cell
    begins with "nothing", else `refused`; `missing` without a row."""
    for old, ours, differs in migrating_rows():
        if name in old or name.rpartition(".")[2] in old:
            return Found(_verdict(ours), differs)
    return Found(MISSING)


def _verdict(ours: str) -> str:
    """`no-op` if the cell begins with "nothing", else `refused`."""
    return NOTHING if ours.partition(" ")[0].rstrip(":") == "nothing" else REFUSED


@cache
def migrating_rows() -> tuple[tuple[frozenset[str], str, str], ...]:
    """The rows of docs/migrating.md's tables: the names in backticks of the first cell, the second cell, the third
    cell."""
    text = MIGRATING.read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.*?) \| (.*?) \| (.*?) \|$", text, re.MULTILINE)
    return tuple((frozenset(re.findall(r"`([^`]+)`", old)), ours, differs) for old, ours, differs in rows)


def shell_found(item: str, words: list[str]) -> Found:
    """The outcome of an item of a shell block: a flag (`words`: it and its values), an option of msrun, a script, or an
    environment variable."""
    if item.startswith("--"):
        return found(flag_reading(words), item)
    if item.startswith("msrun "):
        option = item.removeprefix("msrun ")
        return (Found(ACTS, "msrun") if option in SEEN_OF_MSRUN else OF_MSRUN) if option in _msrun() else Found(MISSING)
    if item == _EXAMPLE.name:
        return Found(ACTS, f"examples/gpt/{item}")
    if item in _EXAMPLE.read_text(encoding="utf-8"):
        return Found(READER, f"for the device's own libraries; examples/gpt/{_EXAMPLE.name} gives it, too")
    return _migrated(item)


@cache
def _msrun() -> frozenset[str]:
    """The option names in the source of MindSpore's msrun."""
    spec = importlib.util.find_spec("mindspore.parallel.cluster.run")
    assert spec is not None and spec.origin is not None
    return frozenset(re.findall(r'"(--\w+)"', Path(spec.origin).read_text(encoding="utf-8")))
