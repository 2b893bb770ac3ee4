"""Megatron's `.bin`/`.idx` files of tokenised text.

`PREFIX.bin` holds the tokens of all sequences one after the other. `PREFIX.idx`, all numbers little-endian:

    9 bytes     "MMIDIDX" and two zero bytes
    uint64      version, 1
    uint8       code of the token type, see `TOKEN_TYPES`
    uint64      n, number of sequences
    uint64      m, number of documents + 1
    int32 [n]   tokens in each sequence
    int64 [n]   where in the .bin file each sequence begins, in bytes
    int64 [m]   sequence number at which each document begins, and n at the end
    int8  [n]   mode of each sequence; only in multimodal data
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from parallel_core.system.files import ReplacingFile, replacing

TOKEN_TYPES: dict[int, type[np.number[Any]]] = {
    1: np.uint8,
    2: np.int8,
    3: np.int16,
    4: np.int32,
    5: np.int64,
    6: np.float64,
    7: np.float32,
    8: np.uint16,
}
"""Code in the .idx file -> type of the numbers in the .bin file."""

_MAGIC = b"MMIDIDX\x00\x00"
_VERSION = 1
_HEADER = struct.Struct("<9sQBQQ")


def bin_path(prefix: str | Path) -> Path:
    """The file of tokens of the data set `prefix`."""
    return Path(f"{prefix}.bin")


def idx_path(prefix: str | Path) -> Path:
    """The file of sequence lengths and positions of the data set `prefix`."""
    return Path(f"{prefix}.idx")


def smallest_token_type(vocab_size: int) -> type[np.number[Any]]:
    """The type of ids below `vocab_size`: uint16 for a `vocab_size` below 65,500 (Megatron's limit), else int32."""
    return np.uint16 if vocab_size < 65500 else np.int32


@dataclass(frozen=True)
class Index:
    """The content of an `.idx` file: the type of the tokens in the .bin file; of each of n sequences the number of
    tokens, the first byte in the .bin file (`sequence_pointers`) and, in multimodal data, the mode; and
    `document_indices` [documents + 1], the number of the sequence at which each document begins, and n."""

    token_type: np.dtype[Any]
    sequence_lengths: NDArray[np.int32]
    """The number of tokens of each sequence [n]."""
    sequence_pointers: NDArray[np.int64]
    """The first byte of each sequence in the .bin file [n]."""
    document_indices: NDArray[np.int64]
    """The number of the sequence at which each document begins, and the number of sequences [documents + 1]."""
    sequence_modes: NDArray[np.int8] | None = None
    """The mode of each sequence [n]; None unless the data set is multimodal."""

    @classmethod
    def from_lengths(
        cls, lengths: ArrayLike, documents: ArrayLike, token_type: DTypeLike, modes: ArrayLike | None = None
    ) -> "Index":
        """The index of sequences of these `lengths`, in tokens, that lie one after the other. documents, modes: as
        `document_indices`, `sequence_modes`."""
        token_type = np.dtype(token_type)
        sequence_lengths = np.asarray(lengths, dtype=np.int32)
        ends = np.cumsum(sequence_lengths, dtype=np.int64) * token_type.itemsize
        return cls(
            token_type,
            sequence_lengths,
            sequence_pointers=ends - sequence_lengths * np.int64(token_type.itemsize),
            document_indices=np.asarray(documents, dtype=np.int64),
            sequence_modes=None if modes is None else np.asarray(modes, dtype=np.int8),
        )

    def write(self, path: Path) -> None:
        """Write the file at `path`, whole or not at all."""
        code = next(code for code, kind in TOKEN_TYPES.items() if self.token_type == kind)
        with replacing(path) as file:
            file.write(_HEADER.pack(_MAGIC, _VERSION, code, len(self.sequence_lengths), len(self.document_indices)))
            for array in (self.sequence_lengths, self.sequence_pointers, self.document_indices, self.sequence_modes):
                if array is not None:
                    file.write(array.tobytes())

    @classmethod
    def read(cls, path: Path) -> "Index":
        """The index in the file at `path`, which is mapped into memory. Raises ValueError, saying what was expected,
        where it isn't a whole index or cannot be read, FileNotFoundError where there is no file."""
        size = path.stat().st_size
        if size < _HEADER.size:
            raise _damaged(path, f"{size} bytes are too few for the header of {_HEADER.size}")
        mapped = _bytes_of(path, mmap=True)
        magic, version, code, n, m = _HEADER.unpack(mapped[: _HEADER.size].tobytes())
        if magic != _MAGIC or version != _VERSION or code not in TOKEN_TYPES:
            raise _damaged(path, "the header is not that of a Megatron .idx file, version 1")
        plain = _HEADER.size + 12 * n + 8 * m
        if size not in (plain, plain + n):
            raise _damaged(path, f"{n} sequences and {m} document bounds take {plain} bytes, the file has {size}")
        documents_at = _HEADER.size + 12 * n
        return cls(
            np.dtype(TOKEN_TYPES[code]),
            mapped[_HEADER.size :][: 4 * n].view(np.int32),
            mapped[_HEADER.size + 4 * n :][: 8 * n].view(np.int64),
            mapped[documents_at : documents_at + 8 * m].view(np.int64),
            mapped[plain:].view(np.int8) if n and size == plain + n else None,
        )


def _bytes_of(path: Path, mmap: bool) -> NDArray[np.uint8]:
    """The bytes of a file, mapped into memory or read. Raises ValueError where it may not be read."""
    try:
        can_map = mmap and path.stat().st_size  # an empty file can't be mapped
        return np.asarray(np.memmap(path, np.uint8, mode="r") if can_map else np.fromfile(path, np.uint8))
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}); make it readable") from error


class IndexedDataset:
    """Reads `PREFIX.bin` and `PREFIX.idx`; tokens are slices of the mapped file, or of its content, never copied."""

    def __init__(self, path_prefix: str | Path, mmap: bool = True) -> None:
        """Raises ValueError naming the file and the fix when one is missing, damaged or not readable.

        mmap: False reads the whole file at once, for file systems on which mapping is slow.
        """
        self.path_prefix = str(path_prefix)
        for path in (idx_path(path_prefix), bin_path(path_prefix)):
            if not path.is_file():
                raise ValueError(f"{path} does not exist; {_hint_for_missing(self.path_prefix)}")
        self._index = Index.read(idx_path(path_prefix))
        self._check_tokens()
        self._tokens = _bytes_of(bin_path(path_prefix), mmap).view(self._index.token_type)

    def _check_tokens(self) -> None:
        index, path = self._index, idx_path(self.path_prefix)
        lengths, documents = index.sequence_lengths, index.document_indices
        whole = Index.from_lengths(lengths, documents, index.token_type)
        if (lengths < 0).any() or not np.array_equal(index.sequence_pointers, whole.sequence_pointers):
            raise _damaged(path, "its sequences don't lie one after the other")
        if not len(documents) or documents[0] != 0 or documents[-1] != len(lengths) or (np.diff(documents) < 0).any():
            raise _damaged(path, f"its document bounds must rise from 0 to {len(lengths)}")
        size = bin_path(self.path_prefix).stat().st_size
        expected = int(lengths.sum(dtype=np.int64)) * index.token_type.itemsize
        if size != expected:
            raise _damaged(bin_path(self.path_prefix), f"its .idx describes {expected} bytes, the file has {size}")

    def __len__(self) -> int:
        """Number of sequences."""
        return len(self._index.sequence_lengths)

    def __getitem__(self, i: int) -> NDArray[np.number[Any]]:
        """The tokens of sequence `i`."""
        return self.get(i)

    def get(self, i: int, offset: int = 0, length: int | None = None) -> NDArray[np.number[Any]]:
        """`length` tokens (None: all that are left) of sequence `i` from token `offset`: a view, not to be written to.
        Raises IndexError for tokens that the sequence does not have."""
        whole = int(self._index.sequence_lengths[i])
        if length is None:
            length = whole - offset
        if not (0 <= offset <= whole and 0 <= length <= whole - offset):
            raise IndexError(f"sequence {i} has {whole} tokens; {length} from {offset} are not in it")
        start = int(self._index.sequence_pointers[i]) // self._index.token_type.itemsize + offset
        return self._tokens[start : start + length]

    @property
    def tokens(self) -> NDArray[np.number[Any]]:
        """Every token of the file, in file order."""
        return self._tokens

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the stored tokens."""
        return self._index.token_type

    @property
    def sequence_lengths(self) -> NDArray[np.int32]:
        """The number of tokens of each sequence [n]."""
        return self._index.sequence_lengths

    @property
    def document_indices(self) -> NDArray[np.int64]:
        """The number of the sequence at which each document begins, and the number of sequences [documents + 1]."""
        return self._index.document_indices

    @property
    def sequence_modes(self) -> NDArray[np.int8] | None:
        """The mode of each sequence [n]; None unless the data set is multimodal."""
        return self._index.sequence_modes

    @staticmethod
    def exists(path_prefix: str | Path) -> bool:
        """Whether both files of a prefix are there."""
        return idx_path(path_prefix).is_file() and bin_path(path_prefix).is_file()


class IndexedDatasetBuilder:
    """Writes `PREFIX.bin` and `PREFIX.idx`; files of these names appear only with `finalize`.

    with IndexedDatasetBuilder(prefix, np.uint16) as builder:
        builder.add_document(tokens, lengths=[len(tokens)])
        builder.finalize()

    Raises ValueError for a type that is not in TOKEN_TYPES.
    """

    def __init__(self, path_prefix: str | Path, dtype: DTypeLike = np.int32, multimodal: bool = False) -> None:
        self.dtype = np.dtype(dtype)
        if self.dtype not in TOKEN_TYPES.values():
            names = ", ".join(kind.__name__ for kind in TOKEN_TYPES.values())
            raise ValueError(f"{self.dtype} can't be stored in a .bin file; use one of {names}")
        self._prefix = path_prefix
        self._bin = ReplacingFile(bin_path(path_prefix))
        self._lengths: list[int] = []
        self._documents = [0]
        self._modes: list[int] | None = [] if multimodal else None

    def add_item(self, tokens: ArrayLike, mode: int = 0) -> None:
        """Add one sequence to the document that is being written. mode: its mode, kept in multimodal data alone. Raises
        ValueError for an id that has at most 64 bits and that the type does not hold."""
        self._add(tokens, [np.size(tokens)], [mode])

    def add_document(self, tokens: ArrayLike, lengths: Sequence[int], modes: Sequence[int] | None = None) -> None:
        """Add a document whose sequences, `lengths` tokens each, lie one after the other in `tokens`; sequences of
        `add_item` that are in no document yet come before them in it. modes: one for each sequence (None: 0), kept in
        multimodal data alone. Raises ValueError for an id that has at most 64 bits and that the type does not hold,
        AssertionError where `tokens` are not as many as `lengths` say."""
        self._add(tokens, lengths, modes or [0] * len(lengths))
        self.end_document()

    def _add(self, tokens: ArrayLike, lengths: Sequence[int], modes: Sequence[int]) -> None:
        values = np.asarray(tokens)
        assert values.size == sum(lengths), f"{values.size} tokens, lengths sum up to {sum(lengths)}"
        stored = values.astype(self.dtype)
        if not np.array_equal(stored, values):
            raise ValueError(
                f"a token of {self._prefix} doesn't fit into {self.dtype}: ids go from {values.min()} to {values.max()}"
            )
        self._bin.file.write(stored.tobytes())
        self._lengths.extend(lengths)
        if self._modes is not None:
            self._modes.extend(modes)

    def end_document(self) -> None:
        """End the document that is being written: it has all sequences that were added since the last one ended."""
        self._documents.append(len(self._lengths))

    def finalize(self) -> None:
        """Give both files their names; every sequence must be in a document that has ended, which is not checked here.
        An older .idx is removed first: it must never be read with the new .bin."""
        idx_path(self._prefix).unlink(missing_ok=True)
        self._bin.publish()
        Index.from_lengths(self._lengths, self._documents, self.dtype, self._modes).write(idx_path(self._prefix))

    def __enter__(self) -> "IndexedDatasetBuilder":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bin.discard()


def _damaged(path: Path, reason: str) -> ValueError:
    return ValueError(f"{path} is damaged: {reason}; copy or preprocess the data set again")


def _hint_for_missing(prefix: str) -> str:
    for ending in (".bin", ".idx"):
        if prefix.endswith(ending):
            return f"give the path without {ending}: {prefix.removesuffix(ending)}"
    completed = f"{prefix}_text_document"
    if IndexedDataset.exists(completed):
        return f"did you mean {completed}?"
    return "give the path of the .bin and .idx files without their ending, as preprocess printed it"
