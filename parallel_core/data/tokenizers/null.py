"""The tokenizer of data that is already token ids."""

from collections.abc import Sequence

from parallel_core.data.tokenizers.base import MegatronTokenizer


class NullTokenizer(MegatronTokenizer):
    """Text is ids written in decimal, with spaces between; one more id, `vocab_size` as given, ends a document."""

    def __init__(self, vocab_size: int) -> None:
        """`vocab_size` counts the ids of the data, without the end of document that is added to them."""
        if vocab_size < 1:
            raise ValueError(f"--vocab-size {vocab_size}: NullTokenizer needs at least one id")
        self._eod = vocab_size

    def tokenize(self, text: str) -> list[int]:
        try:
            ids = [int(word) for word in text.split()]
        except ValueError as error:
            raise ValueError(f"NullTokenizer takes decimal ids with spaces between, not {text[:40]!r}") from error
        wrong = [token_id for token_id in ids if not 0 <= token_id <= self._eod]
        if wrong:
            raise ValueError(f"NullTokenizer: id {wrong[0]} is outside --vocab-size {self._eod}")
        return ids

    def detokenize(self, token_ids: Sequence[int]) -> str:
        return " ".join(str(int(token_id)) for token_id in token_ids)

    @property
    def vocab_size(self) -> int:
        return self._eod + 1

    @property
    def vocab(self) -> dict[str, int]:
        return {str(token_id): token_id for token_id in range(self.vocab_size)}

    @property
    def eod(self) -> int:
        return self._eod
