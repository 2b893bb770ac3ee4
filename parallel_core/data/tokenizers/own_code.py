"""A HuggingFace folder without files that this project reads, by the package `transformers`, which runs the folder's
own code: only if the user trusts that."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from parallel_core.data.tokenizers.base import Facts, MegatronTokenizer, TokenizerOptions
from parallel_core.data.tokenizers.huggingface_folder import ROLES, has_tokenizer, pairs
from parallel_core.data.tokenizers.library import library
from parallel_core.data.tokenizers.sentence_piece_model import FLAG


def is_trusted_code(options: TokenizerOptions) -> bool:
    """Whether --tokenizer-model is a folder in which `has_tokenizer` finds no tokenizer, and the user lets the folder's
    own code run (--trust-remote-code, or trust_remote_code True in --tokenizer-kwargs). May raise ValueError for kwargs
    without a value, and for a damaged file of the folder."""
    trusted = options.trust_remote_code or pairs(options.tokenizer_kwargs).get("trust_remote_code") is True
    folder = Path(options.tokenizer_model or "")
    return trusted and folder.is_dir() and not has_tokenizer(folder)


class OwnCodeTokenizer(MegatronTokenizer):
    """A tokenizer that the package `transformers` loads from a HuggingFace folder, with code of the folder's own where
    there is some. Any error of these in loading, encoding or decoding is a ValueError that names the folder."""

    def __init__(self, options: TokenizerOptions) -> None:
        """Raises ValueError if the code fails, or for --tokenizer-kwargs that lack a value; ConfigError without the
        package."""
        package: Any = library(options.tokenizer_type, "transformers")
        given = {**pairs(options.tokenizer_kwargs), "trust_remote_code": True, "local_files_only": True}
        self._path = options.tokenizer_model
        with self._own_code():
            self._backend = package.AutoTokenizer.from_pretrained(options.tokenizer_model, **given)
            ids: dict[str, Any] = {role: getattr(self._backend, f"{role}_token_id", None) for role in ROLES}
            found = Facts(len(self._backend), eod=ids["eos"], **ids)
        is_newer = not (options.legacy_tokenizer or options.tokenizer_type == "PretrainedFromHF")
        super().__init__(replace(found, pad=ids["eos"]) if ids["pad"] is None and not is_newer else found)
        included = options.tokenizer_hf_include_special_tokens
        self._special = not is_newer if included is None else included
        self._hides = is_newer or not self._special

    @contextmanager
    def _own_code(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # the tokenizer's own code may raise anything
            raise ValueError(f"{FLAG} {self._path}: its own code fails ({error!r:.200})") from error

    def tokenize(self, text: str) -> list[int]:
        return self.encode(text, self._special)

    def encode(self, text: str, special: bool = False) -> list[int]:
        with self._own_code():
            return list(self._backend.encode(text, add_special_tokens=special))

    def detokenize(self, token_ids: Sequence[int]) -> str:
        with self._own_code():
            return self._backend.decode(list(map(int, token_ids)), skip_special_tokens=self._hides)

    @property
    def vocab(self) -> dict[str, int]:
        with self._own_code():
            return self._backend.get_vocab()
