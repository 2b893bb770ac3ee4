"""Small tokenizers (tests/assets/tokenizers), and what the programs that know their formats make of texts with them."""

import json
import shutil
import tarfile
from functools import cache
from pathlib import Path
from typing import Any

from parallel_core.data.tokenizers import TokenizerOptions
from parallel_core.data.tokenizers.command_line import add_tokenizer_flags, tokenizer_options
from parallel_core.system.command_line import command_line
from tests.support.assets import asset, recorded


@cache
def records() -> dict[str, Any]:
    """The recorded `texts` and `surrogates` (name -> text) and `cases` (name -> record)."""
    return recorded("tokenizers/records.json.xz")


@cache
def slow_folders() -> dict[str, Any]:
    """Folders without tokenizer.json by name: `files` (name to a tokenizer's file), `json` (name to content), and what
    transformers 4.57.1 makes of the texts with them."""
    return recorded("tokenizers/slow_folders.json.xz")


def make_slow_folder(name: str, tokenizers: Path, folder: Path) -> Path:
    """Make the folder of that name (`slow_folders`) at `folder`; tokenizers: where the other tokenizers'
    folders are."""
    record = slow_folders()[name]
    folder.mkdir()
    for target, source in record["files"].items():
        shutil.copyfile(tokenizers / source, folder / target)
    for target, content in record["json"].items():
        (folder / target).write_text(json.dumps(content), encoding="utf-8")
    return folder


def unpack(folder: Path) -> Path:
    """Unpack the tokenizers' folders below `folder`; its path."""
    with tarfile.open(asset("tokenizers/folders.tar.xz")) as archive:
        archive.extractall(folder, filter="data")
    return folder


def options(flags: list[str]) -> TokenizerOptions:
    """The tokenizer options that a tool's command line with these flags comes to."""
    parser = command_line("")
    add_tokenizer_flags(parser)
    return tokenizer_options(parser.parse_args(flags))


def options_of(case: str, folders: Path, *more: str) -> TokenizerOptions:
    """The tokenizer options of a case, with `more` flags. A case of transformers alone is read as by Megatron's older
    HuggingFaceTokenizer, with BOS and EOS or without."""
    record = records()["cases"][case]
    flags = record.get("flags") or ["add_special_tokens=True"]
    if not flags[0].startswith("--"):
        flags = ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", "{T}", "--legacy-tokenizer"]
        flags += ["--tokenizer-hf-no-include-special-tokens"] if "nospecial" in case else []
    folder = str(folders / case.partition(".")[0])
    return options([flag.replace("{T}", folder) for flag in [*flags, *more]])
