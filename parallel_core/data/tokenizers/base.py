"""What every tokenizer offers, under Megatron's names."""

from abc import ABC, abstractmethod
from collections.abc import Sequence


class MegatronTokenizer(ABC):
    """Text to token ids and back."""

    @abstractmethod
    def tokenize(self, text: str) -> list[int]:
        """The token ids of `text`, without any special token added."""

    @abstractmethod
    def detokenize(self, token_ids: Sequence[int]) -> str:
        """The text that `token_ids` stand for."""

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """Number of ids, special tokens included, before padding for tensor parallelism."""

    @property
    @abstractmethod
    def vocab(self) -> dict[str, int]:
        """Token to id."""

    @property
    def inv_vocab(self) -> dict[int, str]:
        """Id to token."""
        return {token_id: token for token, token_id in self.vocab.items()}

    @property
    @abstractmethod
    def eod(self) -> int:
        """Id that ends each document."""

    @property
    def pad(self) -> int | None:
        """Id that fills up short samples; None when the vocabulary has no such token."""
        return None
