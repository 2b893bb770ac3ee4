"""GPT-2's byte-level BPE, from a vocabulary file and a merge file, by the package `tokenizers`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from parallel_core.data.tokenizers.base import Facts, TokenizerOptions
from parallel_core.data.tokenizers.json_files import read_json, token_ids
from parallel_core.data.tokenizers.library import TokenizersTokenizer, library

END_OF_TEXT = "<|endoftext|>"


def facts(options: TokenizerOptions) -> Facts:
    """The number of tokens in --vocab-file, and the id of its <|endoftext|>, which ends a document. Raises ValueError
    for a file that is missing, is no byte-level vocabulary, or lacks this token."""
    return _facts(_read_vocab(Path(options.vocab_file or "")))


def _facts(vocab: dict[str, int]) -> Facts:
    return Facts(len(vocab), eod=vocab[END_OF_TEXT])


class GPT2BPETokenizer(TokenizersTokenizer):
    """Byte-level BPE: with a vocabulary that has all bytes any valid Unicode text is encodable, and
    `detokenize(tokenize(text)) == text`.

    `<|endoftext|>` in the text is encoded as the ordinary characters it consists of: a document can't end itself.
    """

    def __init__(self, options: TokenizerOptions) -> None:
        """Raises ValueError naming the file that is missing, damaged, or doesn't belong to the other; ConfigError
        without the package."""
        vocab_file, merge_file = Path(options.vocab_file or ""), Path(options.merge_file or "")
        self._vocab = _read_vocab(vocab_file)
        super().__init__(_facts(self._vocab))
        merges = read_merges("--merge-file", merge_file)
        missing = [token for pair in merges if (token := "".join(pair)) not in self._vocab]
        if missing:
            raise ValueError(
                f"--merge-file {merge_file} makes {len(missing)} tokens that --vocab-file {vocab_file} lacks, such as "
                f"{missing[0]!r}; the two files must come from the same training"
            )
        self._backend = _backend(self._vocab, merges)

    def detokenize(self, token_ids: Sequence[int]) -> str:
        return self._backend.decode(self._known(token_ids, self.inv_vocab), skip_special_tokens=False)

    @property
    def vocab(self) -> dict[str, int]:
        return self._vocab


def _backend(vocab: dict[str, int], merges: list[tuple[str, str]]) -> Any:
    package = library("GPT2BPETokenizer", "tokenizers")
    made = package.Tokenizer(package.models.BPE(vocab, merges))
    made.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = package.decoders.ByteLevel()
    return made


def _read_vocab(path: Path) -> dict[str, int]:
    vocab = token_ids("--vocab-file", path, read_json("--vocab-file", path, "a JSON object of token to id", dict))
    missing = [token for token in ("!", "Ġ", "Ċ", "ÿ", END_OF_TEXT) if token not in vocab]
    if missing:
        raise ValueError(
            f"--vocab-file {path} is not a byte-level vocabulary: it lacks {missing[0]!r}; give GPT-2's vocab.json or "
            "one that the package tokenizers trained"
        )
    return vocab


def read_merges(flag: str, path: Path) -> list[tuple[str, str]]:
    """The pairs of a merge file, in the order in which they are merged; empty lines and those that begin with #version
    are left out. Raises ValueError, naming flag and file, for a file that cannot be read and a line that is not two
    tokens with a space between."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeError) as error:
        raise ValueError(f"{flag} {path}: expected a text file, a merge per line ({error})") from error
    merges: list[tuple[str, str]] = []
    for number, line in enumerate(line for line in lines if line and not line.startswith("#version")):
        left, separator, right = line.partition(" ")
        if not (left and separator and right) or " " in right:
            raise ValueError(f"{flag} {path}: merge {number + 1} is {line!r}; expected two tokens and a space")
        merges.append((left, right))
    return merges
