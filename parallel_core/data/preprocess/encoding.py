"""The encoding of blocks of text to token ids."""

from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from parallel_core.data.indexed_dataset import smallest_token_type
from parallel_core.data.instruction.records import BadRecord
from parallel_core.data.preprocess.inputs import Block, Position, Texts
from parallel_core.data.tokenizers import MegatronTokenizer

Sequences = list[list[int]]
"""The sequences of a document; empty for an empty text."""


class Part(NamedTuple):
    """The tokens that a block adds to one stream of documents: those of all sequences as bytes, the number of tokens of
    each sequence, and the number of sequences of each document."""

    tokens: bytes
    """The tokens of all sequences, one after the other, as bytes of the data set's type."""
    lengths: NDArray[np.int32]
    """The number of tokens of each sequence."""
    sequences: NDArray[np.int32]
    """The number of sequences of each document."""


class Encoded(NamedTuple):
    """A block of text as token ids: the `parts` of the streams (key after key, and partition after partition), the
    number of documents, the number of tokens for each key, place and reason of each record that is `wrong`, the place
    in the input where the block ends, and the bytes of all files up to there (of packed and .parquet ones about)."""

    parts: list[Part]
    """The part of each stream: key after key, and for each key partition after partition."""
    documents: int
    """The number of documents, with those without text."""
    tokens: list[int]
    """The number of tokens for each key."""
    wrong: list[str]
    """Place and reason of each record that cannot be tokenised."""
    end: Position
    """The place in the input where the block ends."""
    bytes_read: int
    """Bytes of all files, as they lie on the disk, up to the block's end; of packed and .parquet ones about."""


@dataclass(frozen=True)
class Encoder:
    """The encoder of blocks of text, which tokenises the texts under `keys`; picklable if the tokenizer is.
    append_eod: put the end of a document behind each one that has tokens; partitions: the number of streams of
    documents for each key: line i of the input, from 0, belongs to stream i modulo this number."""

    tokenizer: MegatronTokenizer
    keys: tuple[str, ...]
    append_eod: bool
    partitions: int = 1
    """The number of streams of documents for each key: line i of the input, from 0, belongs to stream i modulo this
    number."""

    def __call__(self, block: Block) -> Encoded:
        found, wrong = {}, []
        for number, place, texts in block.documents(self.keys):
            if isinstance(texts, BadRecord):
                wrong.append(f"{place}: {texts}")
            else:
                found[number] = (place, texts)
        documents = self._tokenized(found, wrong)
        parts = [
            part_of(
                [doc[key] for number, doc in documents.items() if number % self.partitions == rest], self.token_type
            )
            for key in self.keys
            for rest in range(self.partitions)
        ]
        tokens = [sum(len(part) for doc in documents.values() for part in doc[key]) for key in self.keys]
        return Encoded(parts, len(documents), tokens, wrong, block.end, block.bytes_read)

    @property
    def token_type(self) -> type[np.number[Any]]:
        """The type of the data set's tokens, uint16 or int32, by the size of the vocabulary (`smallest_token_type`)."""
        return smallest_token_type(self.tokenizer.vocab_size)

    def _tokenized(self, found: dict[int, tuple[str, Texts]], wrong: list[str]) -> dict[int, dict[str, Sequences]]:
        """Number of a line -> key -> sequences. found: number of a line -> its place, its texts. `wrong` gets place and
        reason of each line that cannot be tokenised."""
        try:
            ids = iter(
                self.tokenizer.tokenize_batch([text for _, texts in found.values() for text in self._all(texts)])
            )
            return {
                number: self._document(texts, [next(ids) for _ in self._all(texts)])
                for number, (_, texts) in found.items()
            }
        except ValueError as error:
            if len(found) == 1:
                wrong.append(f"{next(iter(found.values()))[0]}: {error}")
                return {}
            # Each text alone, to find the one that fails.
            return {k: v for number, item in found.items() for k, v in self._tokenized({number: item}, wrong).items()}

    def _all(self, texts: Texts) -> list[str]:
        return [text for key in self.keys for text in texts[key]]

    def _document(self, texts: Texts, ids: Sequences) -> dict[str, Sequences]:
        remaining = iter(ids)
        made = {key: [part for _ in texts[key] if (part := next(remaining))] for key in self.keys}
        if self.append_eod:
            for sequences in made.values():
                if sequences:
                    sequences[-1].append(self.tokenizer.eod)
        return made


def part_of(documents: list[Sequences], token_type: type[np.number[Any]]) -> Part:
    """The documents as a part of a stream, tokens as `token_type`. Raises ValueError for an id that this type
    does not hold."""
    sequences = [sequence for document in documents for sequence in document]
    lengths = np.array([len(sequence) for sequence in sequences], np.int32)
    ids = np.fromiter(chain.from_iterable(sequences), np.int64, int(lengths.sum(dtype=np.int64)))
    stored = ids.astype(token_type)
    if not np.array_equal(stored, ids):
        raise ValueError(f"the tokenizer gives ids up to {ids.max()}, which do not fit its size (--vocab-size)")
    return Part(stored.tobytes(), lengths, np.array([len(document) for document in documents], np.int32))
