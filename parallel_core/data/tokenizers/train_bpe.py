"""Learn a byte-level BPE vocabulary, in GPT-2's file format, from text.

    python -m parallel_core.data.tokenizers.train_bpe --input DIR_OR_FILE --vocab-size 4096 --output-dir vocab/

Byte-pair encoding (Sennrich et al., 2016, arXiv:1508.07909): start from single bytes and make the most frequent
neighbouring pair one token, until the vocabulary is full. Only words that contain the merged pair are recounted.
"""

import heapq
import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

from parallel_core.command_line import command_line
from parallel_core.data.preprocess import read_documents
from parallel_core.data.tokenizers.byte_level import END_OF_TEXT, WORD, byte_symbols, to_symbols
from parallel_core.files import replacing

Pair = tuple[str, str]


class PairCounts:
    """How often each pair of neighbouring tokens occurs in the text, kept up to date while pairs are merged."""

    def __init__(self, word_counts: Counter[str]) -> None:
        self.words = [list(to_symbols(word)) for word in word_counts]
        self.word_counts = list(word_counts.values())
        self.counts: Counter[Pair] = Counter()
        self.words_with: defaultdict[Pair, set[int]] = defaultdict(set)
        for index in range(len(self.words)):
            self._count_word(index, sign=1)
        # Entries are (-count, pair) and may be out of date: `most_frequent` drops those whose count has changed.
        self._heap = [(-count, pair) for pair, count in self.counts.items()]
        heapq.heapify(self._heap)

    def most_frequent(self) -> Pair | None:
        """The pair with the highest count (ties: the first in alphabetical order), None when no pair repeats."""
        while self._heap:
            negative_count, pair = heapq.heappop(self._heap)
            if -negative_count == self.counts[pair]:
                return pair if -negative_count > 1 else None
        return None

    def merge(self, pair: Pair) -> None:
        """Make `pair` one token wherever it occurs."""
        changed: set[Pair] = set()
        for index in list(self.words_with[pair]):
            changed |= self._count_word(index, sign=-1)
            self.words[index] = merge_pair(self.words[index], pair)
            changed |= self._count_word(index, sign=1)
        for other in changed:
            heapq.heappush(self._heap, (-self.counts[other], other))

    def _count_word(self, index: int, sign: int) -> set[Pair]:
        pairs = list(pairwise(self.words[index]))
        for pair in pairs:
            self.counts[pair] += sign * self.word_counts[index]
            if sign > 0:
                self.words_with[pair].add(index)
            else:
                self.words_with[pair].discard(index)
        return set(pairs)


def merge_pair(tokens: list[str], pair: Pair) -> list[str]:
    """`tokens` with every occurrence of `pair`, from the left, replaced by one token."""
    merged: list[str] = []
    for token in tokens:
        if merged and (merged[-1], token) == pair:
            merged[-1] += token
        else:
            merged.append(token)
    return merged


def learn_merges(texts: Iterable[str], number: int) -> list[Pair]:
    """The first `number` merges learnt from `texts`, or fewer if every pair that is left occurs only once."""
    words: Counter[str] = Counter()
    for text in texts:
        words.update(WORD.findall(text))
    pairs = PairCounts(words)
    merges: list[Pair] = []
    while len(merges) < number and (pair := pairs.most_frequent()) is not None:
        merges.append(pair)
        pairs.merge(pair)
    return merges


def write_vocabulary(merges: list[Pair], folder: Path) -> None:
    """Write `vocab.json` (bytes, then merges in order, then end of text) and `merges.txt` into `folder`."""
    tokens = [*byte_symbols(), *(left + right for left, right in merges), END_OF_TEXT]
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / "vocab.json") as file:
        file.write(json.dumps({token: index for index, token in enumerate(tokens)}, ensure_ascii=False).encode())
    with replacing(folder / "merges.txt") as file:
        file.write("".join(["#version: 0.2\n", *(f"{left} {right}\n" for left, right in merges)]).encode())


def main(arguments: list[str] | None = None) -> None:
    """Command line."""
    parser = command_line(__doc__.splitlines()[0], "python -m parallel_core.data.tokenizers.train_bpe")
    parser.add_argument("--input", type=Path, required=True, help="a .jsonl or text file, or a directory of text files")
    parser.add_argument("--json-key", default="text", help="field of a .jsonl line that holds the text")
    parser.add_argument("--vocab-size", type=int, default=4096, help="entries, the 256 bytes and end of text included")
    parser.add_argument("--output-dir", type=Path, required=True, help="where vocab.json and merges.txt go")
    args = parser.parse_args(arguments)
    number = args.vocab_size - len(byte_symbols()) - 1
    if number < 0:
        parser.error(f"--vocab-size {args.vocab_size}: at least 257 are needed, 256 bytes and end of text")
    try:
        documents = read_documents(args.input, json_keys=[args.json_key])
        merges = learn_merges((document[args.json_key] for document in documents), number)
    except ValueError as error:
        parser.error(str(error))
    write_vocabulary(merges, args.output_dir)
    print(f"{len(merges) + len(byte_symbols()) + 1} entries written to {args.output_dir}")


if __name__ == "__main__":
    main()
