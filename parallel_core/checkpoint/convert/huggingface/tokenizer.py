"""Files beside the weights in a HuggingFace folder: its tokenizer and settings of generation, which are copied, and the
special ids that its config.json and generation_config.json name."""

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from parallel_core.system.files import read_json

FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
)
"""Files that AutoTokenizer and GenerationConfig read for the families that are known here."""

_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def files_in(folder: Path | None) -> list[str]:
    """Names of the files in `folder` that are a tokenizer's or hold settings of generation (FILES); none for None."""
    return [] if folder is None else [name for name in FILES if (folder / name).is_file()]


def copy_files(folder: Path, names: Iterable[str], target: Path) -> None:
    """Copy the files of these names from `folder` to `target`."""
    for name in names:
        shutil.copyfile(folder / name, target / name)


def ids_in(folder: Path | None) -> Mapping[str, Any]:
    """Key -> value, for those of bos_token_id, eos_token_id and pad_token_id that a folder's config.json has; empty for
    None and without that file. A converted config.json gets them, since transformers' defaults for missing keys are ids
    of other models. Raises ValueError for a file that is no JSON object."""
    config = None if folder is None else folder / "config.json"
    if config is None or not config.is_file():
        return {}
    said = _object(config)
    return {name: said[name] for name in _IDS if name in said}


def end_ids(folder: Path) -> frozenset[int]:
    """The ids that end a text which the folder's model generates, by its generation_config.json; empty without. Raises
    ValueError for a file that is no JSON object."""
    config = folder / "generation_config.json"
    said = _object(config).get("eos_token_id") if config.is_file() else None
    return frozenset(entry for entry in (said if isinstance(said, list) else [said]) if type(entry) is int)


def _object(path: Path) -> dict[str, Any]:
    said = read_json(path)
    if not isinstance(said, dict):
        raise ValueError(f"{path}: expected a JSON object, not {type(said).__name__}")
    return said
