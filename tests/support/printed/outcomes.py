"""The table of outcomes, and reality: `python -m tests.support.printed.outcomes` writes what is found to the table.

Then read the difference: a row that changes is a promise that changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.support.assets import asset
from tests.support.printed.blocks import DOCUMENTS, Block, blocks, named_in_text, python_blocks, tables
from tests.support.printed.configured import EMPTY, UNSAID, found, json_reading, table_found, yaml_reading
from tests.support.printed.found import ACTS, Found
from tests.support.printed.items import defined_names, empty_keys, items, yaml_content
from tests.support.printed.named import python_found, shell_found
from tests.support.printed.prose import text_found


class Row(NamedTuple):
    """The recorded outcome of one item of one block of a document."""

    document: str
    block: str
    """The number of a fenced block, `table` and its number, or `text` for a name in a sentence."""
    item: str
    outcome: str
    detail: str
    test: str = ""
    """The pytest name of the test that changes the value, or uses the name, and sees the effect; for an item that
    acts."""


UNTESTED = "?"
"""The mark in place of a test for an item that acts and has none; no row may be added with it."""


def recorded() -> list[Row]:
    """The rows of tests/assets/documents/outcomes.tsv."""
    lines = asset("documents/outcomes.tsv").read_text(encoding="utf-8").splitlines()[1:]
    return [Row(*line.split("\t")) for line in lines]


def reality(document: str) -> Iterator[Row]:
    """The outcome, as it is now, of every item of a document: of its blocks, tables and sentences."""
    defined = defined_names(python_blocks(document))
    for block in blocks(document):
        for item, what in _of_block(document, block, items(block, defined)):
            yield Row(document, block.number, item, *what)
    for number, table in enumerate(tables(document)):
        for flag, key in table:
            yield Row(document, f"table {number}", f"{flag} -> {key}", *table_found(flag, key))
    for name in named_in_text(document):
        item, equals, value = name.partition("=")
        yield Row(document, "text", item, *shell_found(item, [item, value if equals else "4"]))


def _of_block(document: str, block: Block, wanted: list[str]) -> Iterator[tuple[str, Found]]:
    """(item, outcome) of each wanted item of a block."""
    if block.language in ("yaml", "json"):
        reading = yaml_reading(document, block) if block.language == "yaml" else json_reading(block)
        empty = empty_keys(yaml_content(block.text)) if block.language == "yaml" else set()
        for item in wanted:
            what = found(reading, item)
            yield item, EMPTY if item in empty and what == UNSAID else what
    elif block.language == "bash":
        lines = [line.partition("#")[0].split() for line in block.text.splitlines()]
        of_item = {words[0]: words for words in lines if words}
        yield from ((item, shell_found(item, of_item.get(item, []))) for item in wanted)
    elif block.language == "python":
        yield from ((item, python_found(document, item)) for item in wanted)
    else:
        yield from ((item, text_found(document, block)) for item in wanted)


def write(path: Path) -> None:
    """Write every row as it is now to the file, with the test that it had."""
    tests = {row[:3]: row.test for row in recorded()}
    rows = [Row("document", "block", "item", "outcome", "detail", "test")]
    for row in (row for document in DOCUMENTS for row in reality(document)):
        rows.append(row._replace(test=tests.get(row[:3]) or UNTESTED if row.outcome == ACTS else ""))
    path.write_text("".join("\t".join(map(_cell, row)) + "\n" for row in rows), encoding="utf-8")


def _cell(text: str) -> str:
    """The text on one line."""
    return " ".join(text.split())


if __name__ == "__main__":
    write(asset("documents") / "outcomes.tsv")
