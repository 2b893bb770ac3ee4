"""BERT's word pieces from a vocabulary file, by the package `tokenizers`."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from parallel_core.data.tokenizers.as_transformers import without_blanks
from parallel_core.data.tokenizers.base import Facts, MegatronTokenizer, TokenizerOptions
from parallel_core.data.tokenizers.library import library

_ROLES = {"unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "pad": "[PAD]", "mask": "[MASK]"}
_NO_CHARACTER = "\uf8ff"
"""A character for private use, which no vocabulary has."""
_DROPPED = r"(?![\t\n\r])[\p{Cc}\p{Cf}\x{FFFD}]"
"""Regular expression of characters that are dropped since no token stands for them; the package's own cleaning would
drop those for private use, too."""
_LONGEST_WORD = 200
"""The number of characters of the longest word that is cut; longer words are unknown."""


def facts(options: TokenizerOptions) -> Facts:
    """Size and special ids of --vocab-file and of the tokens that are added to it. Raises ValueError for a file that is
    missing or not BERT's vocabulary."""
    return _with_added(options)[0]


def _with_added(options: TokenizerOptions) -> tuple[Facts, dict[str, int], dict[str, int]]:
    """The facts, the file's vocabulary, and that vocabulary with [BOS], [EOS] and the tokens of --vocab-extra-ids."""
    path = Path(options.vocab_file or "")
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeError) as error:
        raise ValueError(f"--vocab-file {path}: expected a text file, a token per line ({error})") from error
    tokens = [line.strip() for line in (lines[:-1] if lines[-1] == "" else lines)]
    of_file = {token: number for number, token in enumerate(tokens)}
    missing = [token for token in _ROLES.values() if token not in of_file]
    if missing or len(of_file) < len(tokens):
        what = f"it lacks {missing[0]}" if missing else "a token is there twice"
        raise ValueError(f"--vocab-file {path} is not BERT's vocabulary: {what}; give its vocab.txt")
    vocab = dict(of_file)
    bos, eos = vocab.setdefault("[BOS]", len(vocab)), vocab.setdefault("[EOS]", len(vocab))
    extra = [f"<extra_id_{number}>" for number in range(options.vocab_extra_ids)]
    others = tuple(vocab.setdefault(token, len(vocab)) for token in extra)
    ids = {role: vocab[token] for role, token in _ROLES.items()}
    found = Facts(len(vocab), eod=eos, bos=bos, eos=eos, additional_special_tokens_ids=others, **ids)
    return found, of_file, vocab


class BertWordPieceTokenizer(MegatronTokenizer):
    """BERT's tokenizer: from the left a word is cut into the longest pieces that the vocabulary has; one that it does
    not cover, or that has more than 200 characters, is one unknown token. The type BertWordPieceLowerCase makes letters
    lower-case, without accents, before that."""

    def __init__(self, options: TokenizerOptions) -> None:
        """Raises ValueError for a file that is missing or not BERT's vocabulary, ConfigError without the package."""
        found, of_file, self._vocab = _with_added(options)
        super().__init__(found)
        package: Any = library(options.tokenizer_type, "tokenizers")
        lowers = options.tokenizer_type == "BertWordPieceLowerCase"
        model = package.models.WordPiece(of_file, unk_token="[UNK]", max_input_chars_per_word=_LONGEST_WORD)
        self._backend = package.Tokenizer(model)
        normalizers = package.normalizers
        self._backend.normalizer = normalizers.Sequence(
            [
                normalizers.Replace(package.Regex(_DROPPED), ""),
                normalizers.BertNormalizer(clean_text=False, lowercase=lowers),
            ]
        )
        self._backend.pre_tokenizer = package.pre_tokenizers.BertPreTokenizer()

    def tokenize(self, text: str) -> list[int]:
        # Half a surrogate pair is no character: its word becomes the unknown token.
        valid = re.sub("[\\ud800-\\udfff]", _NO_CHARACTER, text)
        return self._backend.encode(valid, add_special_tokens=False).ids

    def detokenize(self, token_ids: Sequence[int]) -> str:
        ids = self._known(token_ids, self.inv_vocab)
        return without_blanks(" ".join(map(self.inv_vocab.__getitem__, ids)).replace(" ##", "").strip())

    @property
    def vocab(self) -> dict[str, int]:
        return self._vocab
