"""Print the ids of texts, and the text of those ids: `python -m mapping tokenize [tokenizer flags] FILE.jsonl`.

FILE has {"text": ...} in each line; for each a line {"ids": [...], "text": ...} is printed. With --info it is one line
about the vocabulary instead: its size, as it is and as training pads it, and its special ids. That needs no package,
but for a HuggingFace folder that only its own code reads.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from parallel_core.data.tokenizers.base import TokenizerOptions
from parallel_core.data.tokenizers.command_line import add_tokenizer_flags, tokenizer_options
from parallel_core.data.tokenizers.registry import build_tokenizer, facts, padded_vocab_size, training_vocab_size
from parallel_core.system.command_line import command_line, ends_quietly, program


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The line number in the file, from 1, and the text of each line that is not blank. Raises ValueError naming the
    file if it cannot be read, and the line that has no {"text": ...}."""
    try:
        lines = path.open("rb")
    except OSError as error:
        raise ValueError(f"{path}: cannot be read ({error.strerror}); give a .jsonl file") from error
    with lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                yield number, _text(f"{path}, line {number}", line)


def _text(where: str, line: bytes) -> str:
    try:
        text = json.loads(line)["text"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f'{where}: expected a JSON object with "text" ({error!r:.200})') from error
    if not isinstance(text, str):
        raise ValueError(f'{where}: "text" must be a text, not {type(text).__name__}')
    return text


def tokenized(path: Path, options: TokenizerOptions) -> Iterator[dict[str, Any]]:
    """For each line of the file that is not blank {"ids": its text's ids, "text": the text of these ids}. Raises
    ConfigError and ValueError as `build_tokenizer`, ValueError as `texts`, and ValueError naming the line where the
    tokenizer raises one for its text."""
    tokenizer = build_tokenizer(options)
    for number, text in texts(path):
        try:
            ids = tokenizer.tokenize(text)
            yield {"ids": ids, "text": tokenizer.detokenize(ids)}
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from error


def info(options: TokenizerOptions, padded: int | None, divisible_by: int, tensor_parallel: int) -> dict[str, Any]:
    """The members of `Facts` by name, "tokenizer_type", and "padded_vocab_size", the rows of the embedding: `padded`,
    or where that is None or 0 the smallest multiple of `divisible_by` x `tensor_parallel` that is not below
    `training_vocab_size`. Raises as `facts` of the registry."""
    found = asdict(facts(options))
    rows = padded or padded_vocab_size(training_vocab_size(options), divisible_by, tensor_parallel)
    return {"tokenizer_type": options.tokenizer_type, **found, "padded_vocab_size": rows}


def _behind_a_list(args: argparse.Namespace) -> Path | None:
    """The file's path where it stands behind a flag with any number of values, which took it for one of them; it is
    removed there. None: it does not."""
    for values in (args.tokenizer_special_tokens, args.tokenizer_kwargs):
        if values and values[-1].endswith(".jsonl"):
            return Path(values.pop())
    return None


def main(arguments: list[str] | None = None) -> None:
    """Print ids and text of each text in the file, or with --info one line about the vocabulary, as JSON. arguments: of
    the command line; None: this process's. Exits with 2 and the reason after a mistake."""
    parser = command_line(__doc__, program("tokenize"))
    parser.add_argument("file", type=Path, nargs="?", help='{"text": ...} in each line', metavar="FILE.jsonl")
    parser.add_argument("--info", action="store_true", help="print size and special ids of the vocabulary instead")
    add_tokenizer_flags(parser)
    parser.add_argument("--load", help="the folder that --patch-tokenizer-type means")
    parser.add_argument("--padded-vocab-size", type=int, help="rows of the embedding, instead of a multiple")
    parser.add_argument("--make-vocab-size-divisible-by", type=int, default=128, help="times the next gives a multiple")
    parser.add_argument("--tensor-model-parallel-size", type=int, default=1, help="of the training")
    args = parser.parse_args(arguments)
    if args.file is None and not args.info:
        args.file = _behind_a_list(args)
    if args.file is None and not args.info:
        parser.error("FILE.jsonl: must be given, or --info")
    if args.make_vocab_size_divisible_by < 1 or args.tensor_model_parallel_size < 1:
        parser.error("--make-vocab-size-divisible-by and --tensor-model-parallel-size must be at least 1")
    try:
        options = tokenizer_options(args)
        sizes = (args.padded_vocab_size, args.make_vocab_size_divisible_by, args.tensor_model_parallel_size)
        with ends_quietly():
            for line in [info(options, *sizes)] if args.info else tokenized(args.file, options):
                print(json.dumps(line))
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
