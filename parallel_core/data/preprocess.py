"""Turn text into Megatron's `.bin`/`.idx` files.

    python -m parallel_core.data.preprocess --input FILE.jsonl|FILE|DIR --output-prefix PREFIX \\
        --tokenizer-type GPT2BPETokenizer --vocab-file vocab.json --merge-file merges.txt --append-eod --workers 4

writes `PREFIX_text_document.bin` and `.idx`: train with `--data-path PREFIX_text_document`. With `--handler-name`, or
`--tokenizer-type PretrainedFromHF`, it takes MindSpeed-LLM's flags and writes what its `preprocess_data.py` writes.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from parallel_core.command_line import command_line
from parallel_core.data.indexed_dataset import IndexedDatasetBuilder, smallest_token_type
from parallel_core.data.instruction.options import InstructionOptions, add_instruction_flags
from parallel_core.data.instruction.preprocess import data_set, preprocess_instructions
from parallel_core.data.tokenizers import MegatronTokenizer, build_tokenizer
from parallel_core.data.tokenizers.command_line import add_tokenizer_flags, tokenizer_options
from parallel_core.data.workers import in_workers

Document = dict[str, str]
"""A text under each key; what isn't JSON has the one key "text"."""


def read_documents(path: Path, json_keys: Sequence[str] = ("text",)) -> Iterator[Document]:
    """The documents of a `.jsonl` file (one a line), of any other file (the file), or of a directory's files, sorted.

    Raises ValueError when there is nothing to read or a line lacks a key.
    """
    if path.is_dir():
        files = [file for file in sorted(path.rglob("*")) if file.is_file() and not file.name.startswith(".")]
    elif path.is_file():
        files = [path]
    else:
        raise ValueError(f"{path} does not exist; give a .jsonl file, a text file, or a directory of such files")
    if not files:
        raise ValueError(f"{path} is an empty directory; put text or .jsonl files into it")
    for file in files:
        yield from _read_json_lines(file, json_keys) if file.suffix == ".jsonl" else [_read_text(file)]


def _read_text(file: Path) -> Document:
    return {"text": file.read_text(encoding="utf-8", errors="replace")}


def _read_json_lines(file: Path, json_keys: Sequence[str]) -> Iterator[Document]:
    with file.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                document = json.loads(line)
                yield {key: document[key] for key in json_keys}
            except (json.JSONDecodeError, KeyError, TypeError) as error:
                raise ValueError(
                    f"{file}, line {number}: expected a JSON object with {', '.join(json_keys)} ({error!r}); "
                    "name the keys that hold text with --json-keys"
                ) from error


class Encoder:
    """Tokenises documents; picklable, so that worker processes can have it."""

    def __init__(self, tokenizer: MegatronTokenizer, append_eod: bool) -> None:
        self.tokenizer = tokenizer
        self.append_eod = append_eod

    def __call__(self, document: Document) -> dict[str, list[int]]:
        return {key: self._encode(text) for key, text in document.items()}

    def _encode(self, text: str) -> list[int]:
        ids = self.tokenizer.tokenize(text)
        return [*ids, self.tokenizer.eod] if ids and self.append_eod else ids


def encode_documents(
    documents: Iterable[Document], tokenizer: MegatronTokenizer, append_eod: bool, workers: int
) -> Iterator[dict[str, list[int]]]:
    """The token ids of each document under its keys, in order; `workers` processes, or this one when it is 1."""
    return in_workers(Encoder(tokenizer, append_eod), documents, workers)


def output_prefix(prefix: str | Path, key: str) -> str:
    """What `--data-path` is given for the data of `key`: Megatron's naming."""
    return f"{prefix}_{key}_document"


def preprocess(
    documents: Iterable[Document],
    prefix: str | Path,
    tokenizer: MegatronTokenizer,
    *,
    json_keys: Sequence[str] = ("text",),
    append_eod: bool = True,
    workers: int = 1,
) -> dict[str, int]:
    """Write the token files of each key under `output_prefix(prefix, key)`; returns the tokens written per key.

    As in Megatron a document is one sequence, and an empty text a document without a sequence.
    """
    token_type = smallest_token_type(tokenizer.vocab_size)
    counts = dict.fromkeys(json_keys, 0)
    with ExitStack() as stack:
        builders = {
            key: stack.enter_context(IndexedDatasetBuilder(output_prefix(prefix, key), token_type)) for key in json_keys
        }
        for encoded in encode_documents(documents, tokenizer, append_eod, workers):
            for key, builder in builders.items():
                ids = encoded[key]
                builder.add_document(ids, lengths=[len(ids)] if ids else [])
                counts[key] += len(ids)
        empty = [key for key, count in counts.items() if not count]
        if empty:
            raise ValueError(f"the input has no text under {', '.join(empty)}: there is nothing to write")
        for builder in builders.values():
            builder.finalize()
    return counts


def _write_instructions(options: InstructionOptions, tokenizer: MegatronTokenizer) -> None:
    """With a handler of MindSpeed-LLM's, and what became of the records."""
    report = preprocess_instructions(options, tokenizer)
    print("\n".join(report.lines()))
    is_packed = options.prefix != options.output_prefix
    path = options.output_prefix if is_packed else data_set(options.prefix, options.keys[0])
    print(f"written: {'--is-instruction-dataset ' if is_packed else ''}--data-path {path}")


def main(arguments: list[str] | None = None) -> None:
    """Command line."""
    parser = command_line(__doc__.splitlines()[0], "python -m parallel_core.data.preprocess")
    parser.add_argument("--input", type=Path, required=True, help="a .jsonl or text file, or a directory of such files")
    parser.add_argument("--output-prefix", type=Path, required=True, help="start of the names of the files written")
    parser.add_argument("--json-keys", nargs="+", default=["text"], help="fields of a .jsonl line that hold text")
    parser.add_argument("--append-eod", action="store_true", help="end every document with the end-of-document id")
    parser.add_argument("--workers", type=int, default=1, help="processes that tokenise")
    add_tokenizer_flags(parser)
    add_instruction_flags(parser)
    args = parser.parse_args(arguments)
    try:
        if args.handler_name or args.tokenizer_type == "PretrainedFromHF":
            options = InstructionOptions.of(args)
            _write_instructions(options, build_tokenizer(tokenizer_options(args)))
            return
        tokenizer = build_tokenizer(tokenizer_options(args))
        counts = preprocess(
            read_documents(args.input, args.json_keys),
            args.output_prefix,
            tokenizer,
            json_keys=args.json_keys,
            append_eod=args.append_eod,
            workers=args.workers,
        )
    except ValueError as error:
        parser.error(str(error))
    for key, count in counts.items():
        print(f"{count} tokens written: --data-path {output_prefix(args.output_prefix, key)}")


if __name__ == "__main__":
    main()
