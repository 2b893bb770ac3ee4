"""How many ids the tokenizer has, and how many rows the embedding table gets."""

from __future__ import annotations

import json
from math import ceil
from pathlib import Path
from typing import Any

from parallel_core.config.base import Unknown
from parallel_core.protobuf import fields


def vocabulary(args: Any) -> Any:
    """Ids that the tokenizer can produce: by flag, else by its files.

    `Unknown` if only files say it and they are not to be looked at; none if there is nothing that says it.
    """
    if args.vocab_size is not None:
        return args.vocab_size + (args.tokenizer_type == "NullTokenizer") + (args.extra_vocab_size or 0)
    files = [path for path in (args.vocab_file, args.tokenizer_model, args.tokenizer_name_or_path) if path]
    if not args.look_at_files:
        return Unknown() if files or args.patch_tokenizer_type else None
    sizes = (_entries(Path(path)) for path in files)
    size = next((size for size in sizes if size is not None), None)
    return None if size is None else size + (args.extra_vocab_size or 0)


def _entries(path: Path) -> int | None:
    """Ids in a byte-pair vocabulary (JSON, token -> id), a SentencePiece model, or a directory's `tokenizer.json`."""
    if path.is_dir():
        path = path / "tokenizer.json"
    if path.suffix == ".model" and path.is_file():
        return _pieces(path.read_bytes())
    if path.suffix != ".json" or not path.is_file():
        return None
    content = json.loads(path.read_text(encoding="utf-8"))
    if "model" not in content:
        return len(content)
    ids = [*content["model"]["vocab"].values(), *(token["id"] for token in content.get("added_tokens", ()))]
    return max(ids) + 1


def _pieces(content: bytes) -> int | None:
    """Pieces of a SentencePiece model, whose package is not needed to count them; none if it is something else.

    The file is one protocol buffer message, in which every piece is an entry of field 1.
    """
    try:
        return sum(field == 1 for field, *_ in fields(content, 0, len(content))) or None
    except (IndexError, ValueError):
        return None


def padded_vocabulary(args: Any) -> Any:
    """Rows of the embedding table: padded to a multiple of `make_vocab_size_divisible_by` x tensor-parallel size."""
    exact = args.padded_vocab_size or args.pad_vocab_size_to
    size = exact if exact is not None else vocabulary(args)
    if exact is not None or size is None or isinstance(size, Unknown):
        return size
    multiple = (args.make_vocab_size_divisible_by or 128) * (args.tensor_model_parallel_size or 1)
    return ceil(size / multiple) * multiple
