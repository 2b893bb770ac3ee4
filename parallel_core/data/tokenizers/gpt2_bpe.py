"""GPT-2's byte-level BPE tokenizer, from a vocabulary file and a merge file."""

import heapq
import json
from collections.abc import Sequence
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path

from parallel_core.data.tokenizers.base import MegatronTokenizer
from parallel_core.data.tokenizers.byte_level import END_OF_TEXT, WORD, byte_symbols, from_symbols, to_symbols

_MAX_CACHED_WORDS = 1 << 20


class GPT2BPETokenizer(MegatronTokenizer):
    """Byte-level BPE: any text is encodable, and `detokenize(tokenize(text)) == text`.

    `<|endoftext|>` in the text is encoded as the ordinary characters it consists of: a document can't end itself.
    """

    def __init__(self, vocab_file: str | Path, merge_file: str | Path) -> None:
        """Read `vocab_file` (JSON, token to id) and `merge_file` (a merge per line, the first made being first).

        Raises ValueError naming the file when one is missing, damaged, or doesn't belong to the other.
        """
        self._vocab = _read_vocab(Path(vocab_file))
        self._ranks = _read_merges(Path(merge_file))
        self._words = _WordCache(self._encode_word)
        missing = [token for pair in self._ranks if (token := "".join(pair)) not in self._vocab]
        if missing:
            raise ValueError(
                f"--merge-file {merge_file} makes {len(missing)} tokens that --vocab-file {vocab_file} lacks, such as "
                f"{missing[0]!r}; the two files must come from the same training"
            )

    def tokenize(self, text: str) -> list[int]:
        return list(chain.from_iterable(map(self._words.__getitem__, WORD.findall(text))))

    def detokenize(self, token_ids: Sequence[int]) -> str:
        text = "".join(map(self._token, token_ids))
        # A document's end, alone among the tokens, is not made of byte symbols.
        return END_OF_TEXT.join(map(from_symbols, text.split(END_OF_TEXT)))

    def _token(self, token_id: int) -> str:
        try:
            return self.inv_vocab[int(token_id)]
        except KeyError:
            raise ValueError(f"token id {token_id} is not in the vocabulary of {self.vocab_size} entries") from None

    @property
    def vocab_size(self) -> int:
        return len(self._vocab)

    @property
    def vocab(self) -> dict[str, int]:
        return self._vocab

    @cached_property
    def inv_vocab(self) -> dict[int, str]:
        return super().inv_vocab

    @property
    def eod(self) -> int:
        return self._vocab[END_OF_TEXT]

    def _encode_word(self, word: str) -> list[int]:
        return [self._vocab[token] for token in merge_by_rank(to_symbols(word), self._ranks)]


class _WordCache(dict[str, list[int]]):
    """Remembers the ids of words: text repeats its words, so almost every look-up ends here."""

    def __init__(self, encode) -> None:
        super().__init__()
        self._encode = encode

    def __missing__(self, word: str) -> list[int]:
        ids = self._encode(word)
        if len(self) < _MAX_CACHED_WORDS:
            self[word] = ids
        return ids


def merge_by_rank(symbols: str, ranks: dict[tuple[str, str], int]) -> list[str]:
    """Apply the merges to one word: always the earliest-learnt pair, leftmost first; O(length log length).

    Tokens are a linked list over their first symbol's position, so a merge touches its neighbours only.
    """
    tokens: list[str] = list(symbols)
    after = [*range(1, len(tokens)), -1] if tokens else []
    before = [*range(-1, len(tokens) - 1)]
    queue = [(ranks[pair], at, pair) for at, pair in enumerate(pairwise(tokens)) if pair in ranks]
    heapq.heapify(queue)

    def propose(left: int) -> None:
        pair = (tokens[left], tokens[after[left]])
        if pair in ranks:
            heapq.heappush(queue, (ranks[pair], left, pair))

    while queue:
        _, left, pair = heapq.heappop(queue)
        right = after[left]
        if right < 0 or (tokens[left], tokens[right]) != pair:
            continue  # one of the two was merged with something else meanwhile
        tokens[left], tokens[right] = "".join(pair), ""
        after[left] = after[right]
        if after[left] >= 0:
            before[after[left]] = left
            propose(left)
        if before[left] >= 0:
            propose(before[left])
    return [token for token in tokens if token]


def _read_vocab(path: Path) -> dict[str, int]:
    try:
        vocab = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeError, json.JSONDecodeError) as error:
        raise ValueError(f"--vocab-file {path}: expected a JSON object of token to id ({error})") from error
    if not isinstance(vocab, dict) or not all(isinstance(token_id, int) for token_id in vocab.values()):
        raise ValueError(f"--vocab-file {path}: expected a JSON object of token to id")
    needed = [*byte_symbols(), END_OF_TEXT]
    missing = [token for token in needed if token not in vocab]
    if missing:
        raise ValueError(
            f"--vocab-file {path} is not a byte-level vocabulary: it lacks {missing[0]!r}; give GPT-2's vocab.json or "
            "one written by parallel_core.data.tokenizers.train_bpe"
        )
    return vocab


def _read_merges(path: Path) -> dict[tuple[str, str], int]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeError) as error:
        raise ValueError(f"--merge-file {path}: expected a text file, a merge per line ({error})") from error
    merges = [line for line in lines if line and not line.startswith("#version")]
    ranks: dict[tuple[str, str], int] = {}
    for number, line in enumerate(merges):
        left, separator, right = line.partition(" ")
        if not (left and separator and right) or " " in right:
            raise ValueError(f"--merge-file {path}: merge {number + 1} is {line!r}; expected two tokens and a space")
        ranks[left, right] = number
    return ranks
