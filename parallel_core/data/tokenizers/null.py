"""The tokenizer of data that is already token ids."""

from collections.abc import Sequence

from parallel_core.data.tokenizers.base import Facts, MegatronTokenizer, TokenizerOptions


def facts(options: TokenizerOptions) -> Facts:
    """The facts by --vocab-size n: without --null-tokenizer-eod-id the further id n ends a document, and the size is
    n + 1; with it that id does, and the size is n. --null-tokenizer-pad-id -1: there is no id of padding. Raises
    ValueError for n below 1, for an end of a document that is not from 0 to n - 1, and for an id of padding that is
    neither that nor -1."""
    size, eod = options.vocab_size or 0, options.null_tokenizer_eod_id
    pad = None if options.null_tokenizer_pad_id == -1 else options.null_tokenizer_pad_id
    if size < 1:
        raise ValueError(f"--vocab-size {size}: NullTokenizer needs at least one id")
    for flag, token_id in (("--null-tokenizer-eod-id", eod), ("--null-tokenizer-pad-id", pad)):
        if token_id is not None and not 0 <= token_id < size:
            raise ValueError(f"{flag} {token_id}: must be below --vocab-size {size}; change one of them")
    return Facts(size + 1, size, pad) if eod is None else Facts(size, eod, pad)


class NullTokenizer(MegatronTokenizer):
    """A tokenizer of texts that are ids in decimal, with spaces between."""

    def __init__(self, options: TokenizerOptions) -> None:
        super().__init__(facts(options))

    def tokenize(self, text: str) -> list[int]:
        try:
            ids = [int(word) for word in text.split()]
        except ValueError as error:
            raise ValueError(
                f"NullTokenizer takes decimal ids with spaces between, not {text[:40]!r}; for text give "
                "--tokenizer-type and its files (a run without it has a NullTokenizer)"
            ) from error
        wrong = [token_id for token_id in ids if not 0 <= token_id < self.vocab_size]
        if wrong:
            raise ValueError(f"NullTokenizer: id {wrong[0]} is not below {self.vocab_size}; raise --vocab-size")
        return ids

    def detokenize(self, token_ids: Sequence[int]) -> str:
        return " ".join(str(int(token_id)) for token_id in token_ids)

    @property
    def vocab(self) -> dict[str, int]:
        return {str(token_id): token_id for token_id in range(self.vocab_size)}
