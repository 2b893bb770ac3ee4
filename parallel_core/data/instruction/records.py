"""Rows of data files with their places, and the counts of those that are read, written and left out."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeGuard

from parallel_core.data.preprocess.opened import kind, opened, package

Row = dict[str, Any]


class BadRecord(ValueError):
    """A record that cannot be trained on; the text says what is wrong with it."""


class UnreadableRecord(BadRecord):
    """A record that is no JSON object, or whose text is no UTF-8 or cannot be written in UTF-8."""


@dataclass(frozen=True)
class Record:
    """A row of a file, or the error in its line, with its place in words (file and line, or number), and about how many
    bytes of the files, as they lie on the disk, go up to and with it."""

    place: str
    """File and line of the row, such as "data.jsonl, line 3", or its number in a list or a .parquet file."""
    row: Row | UnreadableRecord
    bytes_read: int
    """Bytes of the files, as they lie on the disk (packed or not), up to and with this row: exact for lines of files
    that are not packed."""


ON_BAD_RECORD = {
    "reference": "as MindSpeed-LLM: leave it out, or write an empty conversation; stop at what is no JSON object",
    "skip": "leave it out",
    "stop": "stop at the first, and write nothing",
}
"""Value of --on-bad-record -> what a run then does, for --help."""


@dataclass
class Report:
    """The outcome of the records so far: the numbers of records read and of samples written, and place and reason of
    each record (or one of its sequences) that was left out, or written although it was in doubt. on_bad_record: the
    value of --on-bad-record."""

    on_bad_record: str = "reference"
    read: int = 0
    written: int = 0
    """The number of samples, before packing."""
    left_out: list[str] = field(default_factory=list)
    """Place and reason of each record, or one of its sequences, that was left out."""
    doubtful: list[str] = field(default_factory=list)
    """Place and doubt of each record that was written all the same."""

    def left_out_for(self, place: str, error: BadRecord) -> None:
        """Count a record as left out. Raises ValueError instead with --on-bad-record stop; for an `UnreadableRecord`
        with every value but skip."""
        is_broken = isinstance(error, UnreadableRecord) and self.on_bad_record != "skip"
        if is_broken or self.on_bad_record == "stop":
            raise ValueError(f"{place}: {error}; repair it, or leave such records out with --on-bad-record skip")
        self.left_out.append(f"{place}: {error}")

    def is_written(self, place: str, doubt: str) -> bool:
        """Count a doubtful record, and return whether it is written: True with --on-bad-record reference, as in
        MindSpeed-LLM; False with skip. Raises ValueError with stop."""
        if self.on_bad_record != "reference":
            self.left_out_for(place, BadRecord(doubt))
            return False
        self.doubtful.append(f"{place}: {doubt}")
        return True

    def with_more(self, later: "Report") -> "Report":
        """The sum of this report and a later one; both stay as they are."""
        return Report(
            self.on_bad_record,
            self.read + later.read,
            self.written + later.written,
            self.left_out + later.left_out,
            self.doubtful + later.doubtful,
        )

    def lines(self, most: int = 20) -> list[str]:
        """The report as lines of text; at most `most` records of each kind are named."""
        found = [f"{self.read} records read, {self.written} samples written"]
        parts = (("left out", self.left_out), ("written although doubtful", self.doubtful))
        for what, notes in parts:
            if notes:
                found.append(f"{len(notes)} records {what}:")
                found += [f"  {note}" for note in notes[:most]]
                found += [f"  and {len(notes) - most} more"] if len(notes) > most else []
        return found


def text_under(row: Row, key: str | None) -> str:
    """The text in a row under a key, maybe empty. Raises BadRecord where there is none, or something else."""
    value = row.get(str(key))
    if not isinstance(value, str):
        raise BadRecord(f"{key!r} must be a text: is {value!r}"[:200])
    return value


def record_files(path: str | Path) -> list[Path]:
    """The files of `path`: the file itself, or all files in a folder and its subfolders, but those whose own names
    begin with a dot, in the order of their paths.

    Raises ValueError for a path that does not exist, a folder without such files, or a file of an unknown kind.
    """
    path = Path(path)
    files = sorted(f for f in path.rglob("*") if f.is_file() and f.name[0] != ".") if path.is_dir() else [path]
    if not path.exists():
        raise ValueError(f"--input {path} does not exist; give a file or a folder ({', '.join(READERS)})")
    if not files:
        raise ValueError(f"--input {path} is an empty folder; put data into it ({', '.join(READERS)})")
    unknown = [file.name for file in files if kind(file) not in READERS]
    if unknown:
        raise ValueError(
            f"--input {path}: {unknown[0]} is of no kind that is read; give {', '.join(READERS)}, also as .gz or .zst"
        )
    return files


def read_records(path: str | Path) -> Iterator[Record]:
    """The records of a file, or of all files of a folder, in order; a line of a .txt file is the row {"text": line}.
    Blank lines of JSON files are left out; a line of such a file, or an entry of a JSON list, that is no JSON object
    has an `UnreadableRecord` as its row. Iterating raises ValueError for a file that is found to be damaged, or that
    takes a package which is not installed, and as `record_files`; ValueError or OSError for one that cannot be opened
    or read."""
    before = 0
    for file in record_files(path):
        for record in READERS[kind(file)](file):
            yield replace(record, bytes_read=before + record.bytes_read)
        before += file.stat().st_size


def _json_lines(file: Path) -> Iterator[Record]:
    with opened(file) as (lines, raw):
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield Record(f"{file.name}, line {number}", parse_row(line), raw.tell())


def _json(file: Path) -> Iterator[Record]:
    """The records of a file with a list of objects, or with an object in each line."""
    with opened(file) as (lines, _):
        starts = lines.read(4096).lstrip()[:1]
    if starts != b"[":
        yield from _json_lines(file)
        return
    try:
        with opened(file) as (content, _):
            rows = json.loads(content.read())
        json.dumps(rows, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ValueError(f"--input {file}: is no JSON ({error}); repair it") from error
    size = file.stat().st_size
    for number, row in enumerate(rows, start=1):
        yield Record(f"{file.name}, record {number}", _checked(row), size * number // len(rows))


def _text_lines(file: Path) -> Iterator[Record]:
    with opened(file) as (lines, raw):
        for number, line in enumerate(lines, start=1):
            text = line.decode(errors="replace").rstrip("\r\n")
            yield Record(f"{file.name}, line {number}", {"text": text}, raw.tell())


def _parquet(file: Path) -> Iterator[Record]:
    arrow, parquet = (package(name, "parquet", ".parquet") for name in ("pyarrow", "pyarrow.parquet"))
    number, size = 0, file.stat().st_size
    try:
        table = parquet.ParquetFile(file)
        for batch in table.iter_batches():
            for row in batch.to_pylist():
                number += 1
                yield Record(f"{file.name}, record {number}", row, size * number // table.metadata.num_rows)
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--input {file}: is no parquet file ({error}); repair it") from error


READERS = {".jsonl": _json_lines, ".json": _json, ".parquet": _parquet, ".txt": _text_lines}
"""Ending of a file -> reader of its records."""


def parse_row(line: bytes) -> Row | UnreadableRecord:
    """The JSON object in a line, or the error in the line."""
    try:
        row = json.loads(line)
        if b"\\ud" in line.lower():
            json.dumps(row, ensure_ascii=False).encode()
        return _checked(row)
    except (ValueError, RecursionError) as error:
        return UnreadableRecord(f"is no JSON text: {error}")


def _checked(row: Any) -> Row | UnreadableRecord:
    return row if isinstance(row, dict) else UnreadableRecord(f"must be a JSON object: is {type(row).__name__}")


def are_messages(value: Any) -> TypeGuard[list[dict[str, str]]]:
    """Whether a value is a list, not empty, of objects with the texts "role" and "content"."""
    listed = value if isinstance(value, list) and all(isinstance(one, dict) for one in value) else []
    return bool(listed) and all(isinstance(one.get(key), str) for one in listed for key in ("role", "content"))
