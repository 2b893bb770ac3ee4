"""How many ids the tokenizer has, and how many rows the embedding table gets."""

from __future__ import annotations

import json
from math import ceil
from pathlib import Path
from typing import Any


def vocabulary(args: Any) -> int | None:
    """Ids that the tokenizer can produce; none if only files say it that are not there or not to be looked at."""
    size = _tokenizer_size(args)
    return None if size is None else size + (args.extra_vocab_size or 0)


def _tokenizer_size(args: Any) -> int | None:
    if args.vocab_size is not None:
        return args.vocab_size + (args.tokenizer_type == "NullTokenizer")
    if args.look_at_files and args.vocab_file and Path(args.vocab_file).is_file():
        return len(json.loads(Path(args.vocab_file).read_text(encoding="utf-8")))
    return None


def padded_vocabulary(args: Any) -> int | None:
    """Rows of the embedding table: padded to a multiple of `make_vocab_size_divisible_by` x tensor-parallel size."""
    exact = args.padded_vocab_size or args.pad_vocab_size_to
    if exact is not None:
        return exact
    size = vocabulary(args)
    multiple = (args.make_vocab_size_divisible_by or 128) * (args.tensor_model_parallel_size or 1)
    return None if size is None else ceil(size / multiple) * multiple
