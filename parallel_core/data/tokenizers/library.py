"""Libraries that encode and decode: imported where they are first needed, with an error in words where they are
missing."""

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from parallel_core.data.tokenizers.base import MegatronTokenizer
from parallel_core.findings import ConfigError, Finding

INSTALL = "pip install -e '.[tokenizers]'"


def missing_library(tokenizer_type: str, library: str | None) -> Finding | None:
    """The finding that the package `library`, which `tokenizer_type` needs, isn't installed; None if it is, or if the
    type needs no package (`library` None)."""
    if library is None or find_spec(library) is not None:
        return None
    install = "pip install transformers" if library == "transformers" else INSTALL
    return Finding("--tokenizer-type", tokenizer_type, f"encodes with the package {library}, not installed", install)


def library(tokenizer_type: str, name: str) -> ModuleType:
    """The module `name`: a package that `tokenizer_type` needs, or a module of one that is installed. Raises
    ConfigError with the command that installs it where it is missing."""
    finding = missing_library(tokenizer_type, name)
    if finding is not None:
        raise ConfigError([finding])
    return import_module(name)


class TokenizersTokenizer(MegatronTokenizer):
    """A base of tokenizers whose `_backend`, of the package `tokenizers`, encodes text."""

    _backend: Any
    _special = False
    """Whether documents get the tokens that are put around a text (BOS, EOS)."""

    def tokenize(self, text: str) -> list[int]:
        return self.encode(text, self._special)

    def tokenize_batch(self, texts: Sequence[str]) -> list[list[int]]:
        try:
            return [found.ids for found in self._backend.encode_batch_fast(texts, add_special_tokens=self._special)]
        except TypeError as error:
            raise ValueError(f"one of {len(texts)} texts is not valid Unicode ({error})") from error

    def encode(self, text: str, special: bool = False) -> list[int]:
        try:
            return self._backend.encode(text, add_special_tokens=special).ids
        except TypeError as error:
            raise ValueError(f"text is not valid Unicode: {text[:40]!r} ({error})") from error
