"""A tokenizer whose end-of-document and padding ids are given by the user."""

from collections.abc import Sequence

from parallel_core.data.tokenizers.base import MegatronTokenizer


class ReplacedIds(MegatronTokenizer):
    """`tokenizer` with other ids; an id that is none stays as it is."""

    def __init__(self, tokenizer: MegatronTokenizer, eod: int | None = None, pad: int | None = None) -> None:
        self._tokenizer, self._eod, self._pad = tokenizer, eod, pad

    def tokenize(self, text: str) -> list[int]:
        return self._tokenizer.tokenize(text)

    def detokenize(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.detokenize(token_ids)

    @property
    def vocab_size(self) -> int:
        return self._tokenizer.vocab_size

    @property
    def vocab(self) -> dict[str, int]:
        return self._tokenizer.vocab

    @property
    def eod(self) -> int:
        return self._tokenizer.eod if self._eod is None else self._eod

    @property
    def pad(self) -> int | None:
        return self._tokenizer.pad if self._pad is None else self._pad
