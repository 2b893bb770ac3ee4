"""The indices of a GPT data set: vectorised arrays against a walk through the documents, and their cache."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_core.data.gpt_index import IndexRequest, build_gpt_index, build_sample_index, cached_gpt_index


def request(lengths, **changes) -> IndexRequest:
    """A request for the index of documents of these lengths, samples of 4 tokens, with `changes`."""
    lengths = np.array(lengths, np.int32)
    documents = np.arange(len(lengths), dtype=np.int32)
    plain = IndexRequest(lengths=lengths, documents=documents, num_samples=None, sequence_length=4, seed=1)
    return replace(plain, **changes)


def positions_by_walking(lengths: list[int], s: int, extra: bool, samples: int) -> list[tuple[int, int]]:
    """(document, offset) of the beginning of each sample and of the end, found by walking through the documents as
    Megatron does."""
    starts, at, offset = [(0, 0)], 0, 0
    for _ in range(samples):
        left = s + extra
        while left > lengths[at] - offset and at + 1 < len(lengths):
            left -= lengths[at] - offset
            at, offset = at + 1, 0
        offset = min(offset + left, lengths[at]) - extra
        starts.append((at, offset))
    return starts


@given(
    lengths=st.lists(st.integers(0, 9), min_size=1, max_size=12).filter(sum),
    s=st.integers(1, 7),
    extra=st.booleans(),
    drop_last=st.booleans(),
)
def test_sample_index_equals_walking_through_the_documents(lengths, s, extra, drop_last):
    """`build_sample_index` gives the walk's positions, with and without the extra token and the last partial sample,
    empty documents included."""
    asked = request(lengths, sequence_length=s, extra_token=extra, drop_last_partial=drop_last)
    index = build_sample_index(asked, asked.documents)
    rounding = 0 if drop_last else s - 1
    assert len(index) - 1 == (sum(lengths) - extra + rounding) // s
    assert [tuple(row) for row in index.tolist()] == positions_by_walking(lengths, s, extra, len(index) - 1)


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    num_samples=st.integers(1, 60),
    s=st.integers(1, 7),
    seed=st.integers(0, 5),
)
def test_enough_samples_and_every_document_as_often_as_the_others(lengths, num_samples, s, seed):
    """An index has at least the wanted samples, its shuffle is a permutation, and each document occurs equally
    often."""
    index = build_gpt_index(request(lengths, num_samples=num_samples, sequence_length=s, seed=seed))
    assert len(index.sample_index) - 1 == len(index.shuffle_index) >= num_samples
    assert sorted(index.shuffle_index.tolist()) == list(range(len(index.shuffle_index)))
    assert len(set(np.bincount(index.document_index, minlength=len(lengths)).tolist())) == 1


def test_more_tokens_than_32_bits_count_do_not_overflow():
    """Documents of 2^31 - 1 tokens each give right sample positions."""
    index = build_gpt_index(request([2**31 - 1] * 3, sequence_length=2**30))
    assert index.sample_index[:, 0].tolist() == [0, 0, 1, 1, 2, 2]


def test_cache_gives_the_same_and_depends_on_everything(tmp_path):
    """A cached index equals the built one, and a change of any field of the request makes a cache entry of its own."""
    plain = request([5, 7, 9, 11])
    variants = [
        plain,
        replace(plain, lengths=np.array([5, 7, 9, 12], np.int32)),
        replace(plain, documents=np.array([0, 1, 2], np.int32)),
        replace(plain, num_samples=3),
        replace(plain, sequence_length=5),
        replace(plain, seed=2),
        replace(plain, extra_token=False),
        replace(plain, drop_last_partial=False),
    ]
    for number, variant in enumerate(variants, start=1):
        for _ in ("build", "load"):
            built, kept = build_gpt_index(variant), cached_gpt_index(variant, tmp_path, "train")
            for name, array in vars(built).items():
                np.testing.assert_array_equal(getattr(kept, name), array)
            assert len(list(tmp_path.iterdir())) == 3 * number


def test_cache_is_read_on_the_second_time(tmp_path):
    """The second call reads the cached arrays instead of building them."""
    cached_gpt_index(request([5, 7]), tmp_path, "train")
    (path,) = tmp_path.glob("*shuffle_index.npy")
    np.save(path, np.array([9, 9, 9]))
    assert cached_gpt_index(request([5, 7]), tmp_path, "train").shuffle_index.tolist() == [9, 9, 9]


def test_ranks_that_build_at_once_all_get_whole_arrays(tmp_path):
    """Eight threads that build and read one cache entry at once all get the whole arrays, and no temporary file is
    left."""
    asked = request(np.arange(1, 2000), num_samples=5000)
    expected = build_gpt_index(asked).sample_index
    with ThreadPoolExecutor(8) as ranks:
        for index in ranks.map(lambda _: cached_gpt_index(asked, tmp_path, "train"), range(16)):
            np.testing.assert_array_equal(index.sample_index, expected)
    assert len(list(tmp_path.iterdir())) == 3, "no temporary file is left"


def test_damaged_cache_is_named(tmp_path):
    """A damaged cache file is an error with its name and the advice to delete it."""
    cached_gpt_index(request([5, 7]), tmp_path, "train")
    (path,) = tmp_path.glob("*sample_index.npy")
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(ValueError, match=r"sample_index\.npy, an index in --data-cache-path, is damaged.*delete it"):
        cached_gpt_index(request([5, 7]), tmp_path, "train")
