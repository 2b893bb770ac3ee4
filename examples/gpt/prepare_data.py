"""Make training data for the GPT example: text to Megatron's `.bin`/`.idx` files.

    python examples/gpt/prepare_data.py --output-prefix data/stdlib                  # the running Python's own sources
    python examples/gpt/prepare_data.py --output-prefix data/mine --corpus DIR_OR_FILE

Without `--corpus` the text is Python's standard library, up to 6 MB of it (`--max-megabytes`). The files are written as
`PREFIX_text_document.bin` and `.idx`, and left alone when they were made from the same text and vocabulary before.
"""

import argparse
import json
import random
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from glob import glob
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

# Lets the script run from a clone without installation.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from parallel_core.data.indexed_dataset import IndexedDataset
from parallel_core.data.instruction.preprocess import data_set
from parallel_core.data.preprocess.inputs import read_documents
from parallel_core.data.preprocess.text import TextOptions, preprocess_text
from parallel_core.data.tokenizers import TokenizerOptions, facts
from parallel_core.system.command_line import command_line, ends_quietly
from parallel_core.system.files import replacing

VOCABULARY = Path(__file__).resolve().parent / "vocab"
"""Folder of a byte-level BPE vocabulary with 4096 entries, learnt from the standard library."""

SKIPPED_FOLDERS = {"site-packages", "dist-packages", "test", "tests", "idle_test", "encodings"}
"""Folders that are left out: installed packages, tests, and character tables are not the standard library's text."""

SEED = 1234
"""Seed of the order of documents, so that the validation split is not the end of the alphabet."""

PIECES = 1000
"""Documents are cut to at most this part (1 / PIECES) of the text, or to 1000 characters where that part is smaller:
splits are made of whole documents, and the text may be one file."""


def standard_library() -> list[str]:
    """The sources of the running Python's standard library outside of SKIPPED_FOLDERS, a document per file. Raises
    ValueError if there are none, and as `texts_of`."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = [file for file in sorted(root.rglob("*.py")) if SKIPPED_FOLDERS.isdisjoint(file.relative_to(root).parts)]
    if not files:
        raise ValueError(f"{root} has no Python sources; give text of your own with --corpus DIR_OR_FILE")
    return [text for file in files for text in texts_of(file)]


def texts_of(path: Path) -> list[str]:
    """Texts of a .jsonl file (key: text), a text file, a directory of those, or a pattern of names. Raises ValueError
    where there is no file or a document is wrong, OSError for a file that cannot be opened."""
    return [text for document in read_documents(path) for text in document["text"]]


def choose(documents: Sequence[str], max_megabytes: float | None) -> list[str]:
    """The documents that have text, shuffled, up to the first that would make them more than `max_megabytes` (10^6
    bytes as UTF-8) together, at least one if there is any; None: all."""
    chosen = [document for document in documents if document.strip()]
    random.Random(SEED).shuffle(chosen)
    if max_megabytes is None:
        return chosen
    kept: list[str] = []
    size = 0
    for document in chosen:
        size += len(document.encode())
        if kept and size > max_megabytes * 1e6:
            break
        kept.append(document)
    return kept


def cut_long(documents: Sequence[str]) -> list[str]:
    """The documents that are not empty, those longer than 1 / PIECES of all text, and than 1000 characters, cut into
    pieces of at most the greater of these lengths, at the end of a line where there is one."""
    limit = max(1000, sum(map(len, documents)) // PIECES)
    return [piece for document in documents for piece in cut_text(document, limit)]


def cut_text(text: str, limit: int) -> Iterator[str]:
    """Pieces of at most `limit` (1 or more) characters that together are `text`, cut at the last end of a line within
    that length, if there is one."""
    begin = 0
    while begin < len(text):
        end = begin + limit
        if end < len(text):
            end = text.rfind("\n", begin, end) + 1 or end
        yield text[begin:end]
        begin = end


def fingerprint(documents: Sequence[str], vocabulary_files: Sequence[Path]) -> str:
    """A hash of the documents and of the content of the vocabulary's files. Raises OSError for a file that cannot be
    read."""
    digest = sha256()
    for file in vocabulary_files:
        digest.update(file.read_bytes())
    for document in documents:
        digest.update(document.encode() + b"\x00")
    return digest.hexdigest()


def is_ready(prefix: str, record: Path, made_from: str) -> bool:
    """Whether both token files are there and whole, and `record` says that they were made from the input with this
    hash."""
    try:
        IndexedDataset(prefix)
        return json.loads(record.read_text())["made_from"] == made_from
    except (OSError, ValueError, KeyError, TypeError):
        return False


def write(documents: Sequence[str], output_prefix: Path, tokenizer: TokenizerOptions, workers: int) -> int:
    """Write the token files of documents, `<output_prefix>_text_document.bin` and `.idx`, and return the number of
    tokens, those at documents' ends included. workers: processes that tokenise. Raises the errors of
    `preprocess_text`, and ValueError for `workers` below 1."""
    with TemporaryDirectory() as folder:
        file = Path(folder, "documents.jsonl")
        file.write_text("".join(json.dumps({"text": document}) + "\n" for document in documents))
        options = TextOptions(
            input=str(file),
            output_prefix=output_prefix,
            tokenizer=tokenizer,
            append_eod=True,
            workers=workers,
            restart=True,
        )
        return sum(preprocess_text(options).tokens)


def prepare(args: argparse.Namespace) -> str:
    """Write the token files, unless they are there from the same text and vocabulary, and return the prefix to train
    on. args: of `parse_arguments`. Raises ValueError if there is no text, and the errors of `texts_of`, `fingerprint`
    and `write`."""
    started = time.monotonic()
    if args.corpus is not None and not args.corpus.exists() and not glob(str(args.corpus)):
        raise ValueError(f"--corpus {args.corpus} does not exist; give a file, a directory, or a pattern of names")
    source = standard_library() if args.corpus is None else texts_of(args.corpus)
    documents = cut_long(choose(source, args.max_megabytes))
    if not documents:
        raise ValueError(f"{args.corpus or 'the standard library'} has no text in it; give other text with --corpus")
    made_from = fingerprint(documents, [args.vocab_file, args.merge_file])
    prefix = data_set(args.output_prefix, "text")
    record = Path(f"{prefix}.json")
    if is_ready(prefix, record, made_from):
        print(f"{prefix} is there already, made from the same text and vocabulary")
        return prefix
    files = {"vocab_file": str(args.vocab_file), "merge_file": str(args.merge_file)}
    tokenizer = TokenizerOptions("GPT2BPETokenizer", **files)
    tokens = write(documents, args.output_prefix, tokenizer, args.workers)
    with replacing(record) as file:
        file.write(json.dumps({"made_from": made_from, "documents": len(documents), "tokens": tokens}).encode())
    megabytes = sum(map(len, documents)) / 1e6
    print(
        f"{len(documents)} documents, {megabytes:.1f} million characters -> {tokens} tokens of a vocabulary of "
        f"{facts(tokenizer).vocab_size} in {time.monotonic() - started:.1f} s: {prefix}.bin and .idx"
    )
    return prefix


def parse_arguments(arguments: list[str] | None = None) -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    """The parser, and the options that it read from `arguments`, by default the process's own; without --corpus and
    --max-megabytes, 6 MB."""
    parser = command_line(__doc__.splitlines()[0])
    parser.add_argument("--output-prefix", type=Path, required=True, help="start of the names of the files written")
    parser.add_argument(
        "--corpus",
        type=Path,
        help="a .jsonl file (key: text), a text file, a directory, or a pattern of names; default: Python's sources",
    )
    parser.add_argument(
        "--max-megabytes", type=float, help="text to use at most; default: 6 of Python's sources, all of --corpus"
    )
    parser.add_argument("--vocab-file", type=Path, default=VOCABULARY / "vocab.json", help="GPT-2's vocab.json format")
    parser.add_argument("--merge-file", type=Path, default=VOCABULARY / "merges.txt", help="GPT-2's merges.txt format")
    parser.add_argument("--workers", type=int, default=1, help="processes that tokenise; 1 is best below 50 MB")
    args = parser.parse_args(arguments)
    if args.corpus is None and args.max_megabytes is None:
        args.max_megabytes = 6.0
    return parser, args


def main(arguments: list[str] | None = None) -> None:
    """Run the command; a user's mistake exits with status 2."""
    parser, args = parse_arguments(arguments)
    try:
        with ends_quietly():
            prefix = prepare(args)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    print(f"train on it with --data-path {prefix}")


if __name__ == "__main__":
    main()
