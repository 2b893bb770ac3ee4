"""Documents that share a row: positions where each begins and ends, and the attention mask that follows from them."""

import numpy as np

from parallel_core.batch.documents import dense_mask, ends_in_rows, starts_after, wrong_starts

ENDS = np.array([[0, 0, 1, 0, 1, 1, 0], [0, 0, 0, 0, 0, 0, 1]], bool)
STARTS = np.array([[0, 0, 0, 3, 3, 5, 6], [0] * 7], np.int32)


def test_an_end_belongs_to_the_document_that_it_ends():
    """`starts_after`: from the flags of end tokens [b, s] it gives each position the start of its document, in int32,
    and an end token still belongs to its own document."""
    np.testing.assert_array_equal(starts_after(ENDS), STARTS)
    np.testing.assert_array_equal(starts_after(ENDS[0]), STARTS[0])
    assert starts_after(ENDS).dtype == np.int32 and not wrong_starts(STARTS).any()


def test_ends_are_counted_through_all_rows():
    """`ends_in_rows` counts positions through the concatenated rows, and the end of a row ends a document, too."""
    assert ends_in_rows(STARTS) == (3, 5, 6, 7, 14)


def test_a_position_sees_its_document_up_to_itself():
    """`dense_mask` [b, 1, s, s] lets a position see exactly those from its document's start to itself."""
    seen = ~dense_mask(STARTS)
    assert seen.shape == (2, 1, 7, 7)
    assert [np.flatnonzero(row).tolist() for row in seen[0, 0]] == [[0], [0, 1], [0, 1, 2], [3], [3, 4], [5], [6]]
    np.testing.assert_array_equal(seen[1, 0], np.tri(7, dtype=bool))


def test_wrong_starts():
    """`wrong_starts` marks a position whose start is neither the position itself nor the start of the position before;
    at position 0 only a 0 is right."""
    wrong = [[0, 0, 1, 3], [1, 1, 2, 2], [0, 2, 2, 3], [3, 0, 3, 3]]
    found = [np.flatnonzero(row).tolist() for row in wrong_starts(np.array(wrong))]
    assert found == [[2], [0], [1], [0, 1, 2]]
