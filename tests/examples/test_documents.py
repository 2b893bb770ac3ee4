"""Every key, flag and name that the documents print does what the table of outcomes says, and all are in it."""

import re
from collections import Counter

import pytest

from tests.support.assets import ROOT
from tests.support.printed.blocks import DOCUMENTS, blocks
from tests.support.printed.configured import EMPTY, is_about, json_reading, yaml_reading
from tests.support.printed.found import ACTS, NOTHING, READER, REFUSED
from tests.support.printed.named import importable, migrating_rows
from tests.support.printed.outcomes import Row, reality, recorded


def compared(row: Row) -> tuple[str, ...]:
    """The part of a row that is compared: without reasons, which may be reworded, but with the fields that a value goes
    to."""
    return row[:5] if row.outcome == ACTS else row[:4]


@pytest.mark.parametrize("document", DOCUMENTS)
def test_each_item_does_what_the_table_says(document):
    """No key, flag or name of a document's block is without a row of the table, no row without one; each value arrives
    in the config fields that its row names."""
    table = [compared(row) for row in recorded() if row.document == document]
    found = [compared(row) for row in reality(document)]
    assert found == table, "python -m tests.support.printed.outcomes writes the table anew: read what changes"


def test_outcomes_say_why():
    """Each row's outcome is one of the four known ones, and a row has a detail (fields or reason) unless a reader's key
    explains itself."""
    for row in recorded():
        assert row.outcome in (ACTS, NOTHING, REFUSED, READER), row
        assert row.detail or row.outcome == READER, row


def test_what_acts_names_a_test():
    """Rows with outcome `acts`, and no others, name a test that exists as path::name; [a field] behind it, where one
    test covers many fields, is a field of the row."""
    for row in recorded():
        assert bool(row.test) == (row.outcome == ACTS), row
        path, _, name = row.test.partition("::")
        name, _, field = name.partition("[")
        assert not row.test or f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), row
        assert field.rstrip("]") in row.detail, row


@pytest.mark.parametrize("document", DOCUMENTS)
def test_what_does_nothing_is_reported(document, capsys):
    """Each key with outcome `no-op` that is given a value makes reading print a line that it is ignored, and why."""
    for block in blocks(document):
        rows = [row for row in recorded() if row[:2] == (document, block.number) and row.outcome == NOTHING]
        if rows and block.language in ("yaml", "json"):
            reading = yaml_reading(document, block) if block.language == "yaml" else json_reading(block)
            reading.print_notes()
            names = re.findall(r"^ignored: (\S+): \S", capsys.readouterr().out, re.MULTILINE)
            for row in rows:
                assert row.detail == EMPTY.detail or any(is_about(name, row.item) for name in names), row


@pytest.mark.parametrize("document", DOCUMENTS)
def test_blocks_are_accepted(document):
    """Reading a document's block as printed has no finding, except that a fragment leaves out a model's sizes."""
    for block in (block for block in blocks(document) if block.language in ("yaml", "json")):
        reading = yaml_reading(document, block) if block.language == "yaml" else json_reading(block)
        assert [str(finding) for finding in reading.findings if finding.rule != "must be given"] == []


def test_names_to_migrate_to_can_be_imported():
    """Every name of ours in the second column of docs/migrating.md can be imported."""
    ours = [
        name
        for _, here, _ in migrating_rows()
        for name in re.findall(r"`((?:mapping|pynative|parallel_core)\.[\w.]+)", here)
    ]
    assert ours and [name for name in ours if not importable(name)] == []


def test_the_table_covers_the_documents():
    """Each document has more than 15 rows and document 003 more than 200: losing blocks and their rows together would
    pass the other tests."""
    rows = Counter(row.document for row in recorded())
    assert rows["003"] > 200 and min(rows[document] for document in DOCUMENTS) > 15
