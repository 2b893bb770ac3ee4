"""Token files (.bin, .idx): byte for byte Megatron's, and refused with a reason if damaged."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_core.data.indexed_dataset import (
    Index,
    IndexedDataset,
    IndexedDatasetBuilder,
    bin_path,
    idx_path,
    smallest_token_type,
)
from tests.support.assets import asset
from tests.support.corpus import write_corpus


def copy_with_builder(source: IndexedDataset, prefix) -> None:
    with IndexedDatasetBuilder(prefix, source.dtype) as builder:
        for begin, end in zip(source.document_indices[:-1], source.document_indices[1:], strict=True):
            for i in range(begin, end):
                builder.add_item(source[i])
            builder.end_document()
        builder.finalize()


@pytest.mark.parametrize("name", ["corpus_a", "corpus_b"])
def test_writes_the_bytes_that_megatron_wrote(name, tmp_path):
    """A data set read and written again has the bytes that Megatron wrote."""
    original = asset("golden/data_gpt") / name
    copy_with_builder(IndexedDataset(original), tmp_path / name)
    for path in (bin_path, idx_path):
        assert path(tmp_path / name).read_bytes() == path(original).read_bytes()


@given(documents=st.lists(st.lists(st.lists(st.integers(0, 65535), max_size=5), max_size=3), max_size=5))
def test_reads_what_was_written(documents, tmp_path_factory):
    """Sequences and document bounds are read as written, empty ones included."""
    prefix = tmp_path_factory.mktemp("data") / "d"
    with IndexedDatasetBuilder(prefix, np.uint16) as builder:
        for document in documents:
            builder.add_document([token for sequence in document for token in sequence], [len(s) for s in document])
        builder.finalize()
    dataset = IndexedDataset(prefix)
    sequences = [sequence for document in documents for sequence in document]
    assert [dataset[i].tolist() for i in range(len(dataset))] == sequences
    assert np.diff(dataset.document_indices).tolist() == [len(document) for document in documents]


def test_part_of_a_sequence_is_a_view_of_the_file(tmp_path):
    """`get(i, offset, length)` is a read-only view of the file's memory."""
    dataset = IndexedDataset(write_corpus(tmp_path / "d", [7, 5]))
    part = dataset.get(1, offset=2, length=3)
    assert part.tolist() == dataset[1].tolist()[2:5]
    assert np.shares_memory(part, dataset.tokens) and not part.flags.writeable


@pytest.mark.parametrize(("offset", "length"), [(-1, 2), (0, 8), (8, None), (3, 5), (2, -1)])
def test_part_outside_its_sequence_is_an_error(tmp_path, offset, length):
    """`get` with an offset or length outside of the sequence raises IndexError with its length."""
    dataset = IndexedDataset(write_corpus(tmp_path / "d", [7, 5]))
    with pytest.raises(IndexError, match="sequence 0 has 7 tokens"):
        dataset.get(0, offset, length)


def test_modes_of_multimodal_data(tmp_path):
    """The modes of a multimodal data set are read; a plain one has None."""
    with IndexedDatasetBuilder(tmp_path / "d", np.int32, multimodal=True) as builder:
        builder.add_document([1, 2, 3], [2, 1], modes=[0, 1])
        builder.finalize()
    modes = IndexedDataset(tmp_path / "d").sequence_modes
    assert modes is not None and modes.tolist() == [0, 1]
    assert IndexedDataset(write_corpus(tmp_path / "plain", [3])).sequence_modes is None


def test_ids_that_do_not_fit_are_refused_not_wrapped(tmp_path):
    """An id of 70000 is refused for uint16 instead of being stored modulo 2^16."""
    with (
        IndexedDatasetBuilder(tmp_path / "d", np.uint16) as builder,
        pytest.raises(ValueError, match="fit into uint16"),
    ):
        builder.add_document([1, 70000], [2])


def test_smallest_type_is_megatrons():
    """Tokens are uint16 for vocabularies below 65,500, else int32, as in Megatron."""
    assert [smallest_token_type(size) for size in (65499, 65500)] == [np.uint16, np.int32]


def test_unfinished_files_never_get_their_name(tmp_path):
    """A builder that ends by an exception leaves no file."""
    with pytest.raises(KeyboardInterrupt), IndexedDatasetBuilder(tmp_path / "d") as builder:
        builder.add_document([1], [1])
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_new_tokens_are_never_read_with_the_old_index(tmp_path, monkeypatch):
    """A rewrite that fails between .bin and .idx leaves no .idx, so that new tokens are not read with the old index."""
    prefix = write_corpus(tmp_path / "d", [3, 4])

    def disk_full(*_):
        raise OSError("disk full")

    monkeypatch.setattr(Index, "write", disk_full)
    with pytest.raises(OSError, match="disk full"):
        write_corpus(tmp_path / "d", [4, 3])
    with pytest.raises(ValueError, match=r"d\.idx does not exist"):
        IndexedDataset(prefix)


def test_missing_file_says_what_to_give(tmp_path):
    """A wrong prefix is an error that proposes the right one: the full name of the data set, or the path without
    .bin."""
    prefix = write_corpus(tmp_path / "d_text_document", [3])
    with pytest.raises(ValueError, match=r"d\.idx does not exist; did you mean .*d_text_document"):
        IndexedDataset(tmp_path / "d")
    with pytest.raises(ValueError, match=r"without \.bin"):
        IndexedDataset(prefix + ".bin")


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("ending", [".bin", ".idx"])
def test_a_file_that_may_not_be_read_is_named(tmp_path, monkeypatch, ending, mmap):
    """A file without the right to read it is an error that names it, mapped or read."""
    prefix = write_corpus(tmp_path / "c", [3])

    def refusing(read):
        def one(path, *arguments, **options):
            if str(path).endswith(ending):
                raise PermissionError(13, "Permission denied")
            return read(path, *arguments, **options)

        return one

    monkeypatch.setattr(np, "memmap", refusing(np.memmap))
    monkeypatch.setattr(np, "fromfile", refusing(np.fromfile))
    with pytest.raises(ValueError, match=rf"c\{ending} cannot be read \(Permission denied\); make it readable"):
        IndexedDataset(prefix, mmap=mmap)


def damage_end_of_bin(prefix):
    bin_path(prefix).write_bytes(bin_path(prefix).read_bytes()[:-3])


def damage_end_of_idx(prefix):
    idx_path(prefix).write_bytes(idx_path(prefix).read_bytes()[:-3])


def leave_half_a_header(prefix):
    idx_path(prefix).write_bytes(idx_path(prefix).read_bytes()[:20])


def overwrite_idx(at: int, value: bytes):
    """A function that writes `value` into a data set's .idx from byte `at` on."""

    def damage(prefix):
        content = bytearray(idx_path(prefix).read_bytes())
        content[at : at + len(value)] = value
        idx_path(prefix).write_bytes(content)

    return damage


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        pytest.param(damage_end_of_bin, r"d\.bin is damaged: its \.idx describes 30 bytes, the file has 27", id="bin"),
        pytest.param(
            damage_end_of_idx, r"d\.idx is damaged: 2 sequences and 3 document bounds take 82 bytes", id="idx"
        ),
        pytest.param(leave_half_a_header, r"d\.idx is damaged: 20 bytes are too few for the header", id="header"),
        pytest.param(overwrite_idx(0, b"PK"), r"d\.idx is damaged: the header is not that of a Megatron", id="magic"),
        pytest.param(overwrite_idx(17, b"\x63"), r"d\.idx is damaged: the header is not", id="token type"),
        pytest.param(overwrite_idx(34, b"\xff" * 4), r"d\.idx is damaged: its sequences don't lie", id="length"),
        pytest.param(overwrite_idx(38, b"\xff" * 4), r"d\.idx is damaged: its sequences don't lie", id="last length"),
        pytest.param(overwrite_idx(50, b"\x02"), r"d\.idx is damaged: its sequences don't lie", id="pointer"),
        pytest.param(overwrite_idx(74, b"\x09"), r"d\.idx is damaged: its document bounds must rise", id="documents"),
    ],
)
def test_damaged_files_are_named(tmp_path, damage, reason):
    """A .bin or .idx that is cut off or overwritten is an error with its name and the contradiction."""
    prefix = write_corpus(tmp_path / "d", [10, 5])
    damage(prefix)
    with pytest.raises(ValueError, match=reason):
        IndexedDataset(prefix)


def test_every_truncation_is_noticed(tmp_path):
    """An .idx cut off at any length is an error."""
    prefix = write_corpus(tmp_path / "d", [10, 5])
    whole = idx_path(prefix).read_bytes()
    for size in range(len(whole)):
        idx_path(prefix).write_bytes(whole[:size])
        with pytest.raises(ValueError, match="is damaged"):
            IndexedDataset(prefix)
