"""Documents that share a row: where they begin and end, and the mask that says so."""

import numpy as np

from parallel_core.batch.documents import dense_mask, ends_in_rows, starts_after, wrong_starts

ENDS = np.array([[0, 0, 1, 0, 1, 1, 0], [0, 0, 0, 0, 0, 0, 1]], bool)
STARTS = np.array([[0, 0, 0, 3, 3, 5, 6], [0] * 7], np.int32)


def test_an_end_belongs_to_the_document_that_it_ends():
    np.testing.assert_array_equal(starts_after(ENDS), STARTS)
    np.testing.assert_array_equal(starts_after(ENDS[0]), STARTS[0])
    assert starts_after(ENDS).dtype == np.int32 and not wrong_starts(STARTS).any()


def test_ends_are_counted_through_all_rows():
    """A row's end is a document's."""
    assert ends_in_rows(STARTS) == (3, 5, 6, 7, 14)


def test_a_position_sees_its_document_up_to_itself():
    seen = ~dense_mask(STARTS)
    assert seen.shape == (2, 1, 7, 7)
    assert [np.flatnonzero(row).tolist() for row in seen[0, 0]] == [[0], [0, 1], [0, 1, 2], [3], [3, 4], [5], [6]]
    np.testing.assert_array_equal(seen[1, 0], np.tri(7, dtype=bool))


def test_wrong_starts():
    """A number that is neither the position's own nor the one before's; the last one says nothing of the first."""
    wrong = [[0, 0, 1, 3], [1, 1, 2, 2], [0, 2, 2, 3], [3, 0, 3, 3]]
    found = [np.flatnonzero(row).tolist() for row in wrong_starts(np.array(wrong))]
    assert found == [[2], [0], [1], [0, 1, 2]]
