"""Text to be tokenised, in blocks of lines or rows; a plain text is one block and one document."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from glob import glob
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from parallel_core.data.instruction.records import BadRecord, Row, UnreadableRecord, parse_row
from parallel_core.data.preprocess.opened import kind, opened, package

BLOCK = 1 << 18
"""Bytes of lines that a worker gets at once: enough to keep the tokenizer busy, few enough to be read ahead."""
_ROWS = 256
"""Rows of a .parquet file that a worker gets at once."""

Texts = dict[str, list[str]]
"""Key -> the sequences of a document: one text, or those of a list."""


@dataclass(frozen=True)
class Position:
    """A place in the input, up to which it has been read: the number of the file, the offset in its unpacked content
    (bytes, or rows of a .parquet file; 1 behind an empty plain text), and the number of lines or rows before it in that
    file, and in all files; a plain text counts as one line."""

    file: int = 0
    """The number of the file, from 0."""
    offset: int = 0
    """The offset in the file's content, unpacked: bytes, or rows of a .parquet file; 1 behind an empty plain text."""
    lines: int = 0
    """The number of lines or rows before it in the file; 1 behind a plain text."""
    all_lines: int = 0
    """The number of lines or rows before it in all files, a plain text counted as one."""


BEGINNING = Position()


class Block(NamedTuple):
    """A piece of a file, from the place `start` to `end`: a run of its lines or rows, or its whole text. bytes_read:
    bytes up to the piece's end, as they lie on the disk (of packed and .parquet files about); in a block from `blocks`
    those of all files, else of this file alone."""

    file: Path
    content: bytes | list[Row]
    start: Position
    end: Position
    bytes_read: int
    """Bytes of the file as it lies on the disk, up to the block's end (of a packed or .parquet file about); those of
    all files before it are added by `blocks`."""

    def documents(self, keys: Sequence[str]) -> Iterator[tuple[int, str, Texts | BadRecord]]:
        """(number, place, content) of each document: its number, from 0, among the lines and rows of all files, blank
        lines counted, a plain text as one line; its file and line or row (a plain text's file alone); its texts under
        `keys`, of which a plain text has `text` alone, or the error in it. Blank lines are no documents."""
        if kind(self.file) not in READERS:
            yield self.start.all_lines, str(self.file), _texts(_text(self.content), keys)
            return
        is_lines = isinstance(self.content, bytes)
        rows: Sequence[Any] = self.content.split(b"\n") if isinstance(self.content, bytes) else self.content
        for number, row in enumerate(rows):
            if is_lines and not row.strip():
                continue
            place = f"{self.file}, {'line' if is_lines else 'row'} {self.start.lines + number + 1}"
            yield self.start.all_lines + number, place, _texts(parse_row(row) if is_lines else row, keys)


def _text(content: Any) -> Row | UnreadableRecord:
    try:
        return {"text": content.decode()}
    except UnicodeDecodeError as error:
        return UnreadableRecord(f"is no UTF-8 text: {error}")


def _texts(row: Row | UnreadableRecord, keys: Sequence[str]) -> Texts | BadRecord:
    if isinstance(row, UnreadableRecord):
        return row
    texts = {}
    for key in keys:
        if key not in row:
            return BadRecord(f"has no key {key!r}; there are {', '.join(map(repr, row)) or 'none'} (--json-keys)")
        value = row[key]
        parts = value if isinstance(value, list) else [value]
        wrong = [part for part in parts if not isinstance(part, str)]
        if wrong:
            return BadRecord(f"{key!r} must be a text or a list of texts, has {type(wrong[0]).__name__}")
        texts[key] = parts
    return texts


def input_files(given: str) -> list[Path]:
    """The files of `--input` in the order of their paths: the file, all of a folder and its subfolders that are not
    hidden, or those that match a pattern. Raises ValueError where there is none."""
    path = Path(given)
    if path.is_dir():
        files = [file for file in sorted(path.rglob("*")) if file.is_file() and not _is_hidden(file.relative_to(path))]
        if not files:
            raise ValueError(f"--input {path} is an empty directory; put text or .jsonl files into it")
        return files
    files = [path] if path.is_file() else [Path(name) for name in sorted(glob(given)) if Path(name).is_file()]
    if not files:
        raise ValueError(f"--input {path} does not exist; give a file, a directory of files, or a pattern of names")
    return files


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def blocks(files: Sequence[Path], start: Position = BEGINNING) -> Iterator[Block]:
    """The blocks of the files, in order, from `start` on. Raises ValueError for a packed file that cannot be unpacked
    and for a package that is missing, ValueError or OSError for a file that is missing or cannot be read."""
    before = 0
    for number, file in enumerate(files):
        if number < start.file:
            before += file.stat().st_size
            continue
        here = start if number == start.file else Position(number, 0, 0, start.all_lines)
        for block in READERS.get(kind(file), _whole)(file, here):
            yield block._replace(bytes_read=before + block.bytes_read)
            start = block.end
        before += file.stat().st_size


def _lines(file: Path, here: Position) -> Iterator[Block]:
    with opened(file) as (content, raw):
        _skip(content, here.offset)
        while lines := content.read(BLOCK):
            lines += content.readline()
            # The last line may have no end.
            count = lines.count(b"\n") + (not lines.endswith(b"\n"))
            end = Position(here.file, here.offset + len(lines), here.lines + count, here.all_lines + count)
            yield Block(file, lines, here, end, raw.tell())
            here = end


def _skip(content: BinaryIO, size: int) -> None:
    if content.seekable():
        content.seek(size)
        return
    while size > 0 and (skipped := len(content.read(min(size, BLOCK)))):
        size -= skipped


def _whole(file: Path, here: Position) -> Iterator[Block]:
    if here.offset:
        return
    with opened(file) as (content, raw):
        text = content.read()
        yield Block(file, text, here, Position(here.file, len(text) or 1, 1, here.all_lines + 1), raw.tell())


def _parquet(file: Path, here: Position) -> Iterator[Block]:
    arrow = package("pyarrow", "parquet", ".parquet")
    parquet = package("pyarrow.parquet", "parquet", ".parquet")
    try:
        table = parquet.ParquetFile(file)
        count, size = max(1, table.metadata.num_rows), file.stat().st_size
        rows = (row for batch in table.iter_batches(_ROWS) for row in batch.to_pylist())
        for _ in islice(rows, here.offset):
            pass
        while part := list(islice(rows, _ROWS)):
            offset = here.offset + len(part)
            end = Position(here.file, offset, offset, here.all_lines + len(part))
            yield Block(file, part, here, end, size * offset // count)
            here = end
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--input {file}: is no parquet file ({error}); repair it") from error


READERS: dict[str, Callable[[Path, Position], Iterator[Block]]] = {
    ".jsonl": _lines,
    ".json": _lines,
    ".parquet": _parquet,
}
"""Ending of a file, without that of packing -> the function that reads its blocks; any other file is one text."""


def read_documents(path: Path, keys: Sequence[str] = ("text",)) -> Iterator[Texts]:
    """The texts under `keys` of each document of the files at `path` (a file, a folder or a pattern, as `input_files`
    takes it). Raises the errors of `input_files` and `blocks`, and ValueError for the first document that is wrong."""
    for block in blocks(input_files(str(path))):
        for _, place, texts in block.documents(keys):
            if isinstance(texts, BadRecord):
                raise ValueError(f"{place}: {texts}; repair it or take it out, or give a pattern as 'DIR/*.txt'")
            yield texts
