"""The loader of a step's rows: right rows in order, with and without the thread that reads ahead (`prefetch`)."""

import threading

import numpy as np
import pytest

from parallel_core.data.loader import FirstSamples, StepLoader, build_step_loader


class Numbers:
    """A data set whose sample i has the tokens [i, i]; sample `broken_at` cannot be read."""

    def __init__(self, number: int, broken_at: int | None = None) -> None:
        self.number = number
        self.broken_at = broken_at

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, i: int, /) -> dict[str, np.ndarray]:
        if i == self.broken_at:
            raise OSError("unreadable")
        return {"tokens": np.array([i, i]), "loss_mask": np.ones(2, np.float32)}


@pytest.mark.parametrize("prefetch", [False, True])
def test_steps_of_all_ranks_are_the_global_batches_in_order(prefetch):
    """The steps of three data-parallel ranks, read by micro-batch, are the global batches in order, from the consumed
    samples on; a rest smaller than a batch is left out."""
    m, d, k = 2, 3, 2
    ranks = [
        list(
            build_step_loader(
                Numbers(45), 12, micro_batch_size=m, micro_batch_num=k, data_parallel_rank=rank, data_parallel_size=d,
                prefetch=prefetch,
            )
        )
        for rank in range(d)
    ]  # fmt: skip
    assert [len(steps) for steps in ranks] == [2] * d, "45 samples from 12 on are two batches of 12 and a rest"
    for step in range(2):
        rows = np.stack([ranks[rank][step]["tokens"][:, 0] for rank in range(d)])
        by_micro_batch = rows.reshape(d, k, m).transpose(1, 0, 2).ravel()
        assert by_micro_batch.tolist() == list(range(12 + 12 * step, 24 + 12 * step))
    assert ranks[0][0]["loss_mask"].shape == (m * k, 2)


@pytest.mark.parametrize("prefetch", [False, True])
def test_steps_may_grow(prefetch):
    """The number of micro-batches may be a function of the samples given so far; a second pass over the loader begins
    after the last sample used."""
    loader = build_step_loader(
        Numbers(9), 0, micro_batch_size=1, micro_batch_num=lambda given: 1 + given // 2, data_parallel_rank=0,
        data_parallel_size=1, prefetch=prefetch,
    )  # fmt: skip
    assert [step["tokens"][:, 0].tolist() for step in loader] == [[0], [1], [2, 3], [4, 5, 6]]
    assert [len(step["tokens"]) for step in loader] == [4]


def test_cyclic_never_ends_and_reshuffles():
    """--dataloader-type cyclic goes through all samples again and again, in another order each time."""
    loader = build_step_loader(
        Numbers(4), 0, micro_batch_size=1, micro_batch_num=4, data_parallel_rank=0, data_parallel_size=1,
        dataloader_type="cyclic",
    )  # fmt: skip
    steps = iter(loader)
    epochs = [next(steps)["tokens"][:, 0].tolist() for _ in range(5)]
    assert all(sorted(epoch) == [0, 1, 2, 3] for epoch in epochs) and len({tuple(epoch) for epoch in epochs}) > 1


@pytest.mark.parametrize("prefetch", [False, True])
def test_an_error_while_reading_reaches_the_caller(prefetch):
    """An error of a sample is raised at its step, after the steps before it."""
    steps = iter(StepLoader(Numbers(8, broken_at=5), [[0, 1], [2, 3], [4, 5]], 1, prefetch=prefetch))
    assert [next(steps)["tokens"][0, 0] for _ in range(2)] == [0, 2]
    with pytest.raises(OSError, match="unreadable"):
        next(steps)


def test_mistakes_in_the_flags_are_named():
    """An unknown --dataloader-type, too small a global batch, and a data set without samples are errors."""
    places = {"micro_batch_size": 1, "micro_batch_num": 1, "data_parallel_rank": 0, "data_parallel_size": 1}
    with pytest.raises(ValueError, match="--dataloader-type external is not available; choose single or cyclic"):
        build_step_loader(Numbers(8), 0, **places, dataloader_type="external")
    with pytest.raises(ValueError, match="--global-batch-size must be at least"):
        build_step_loader(Numbers(8), 0, **places | {"micro_batch_num": 0})
    with pytest.raises(ValueError, match="the data have no sample"):
        build_step_loader(Numbers(0), 0, **places)


def test_an_unfinished_iteration_ends_without_waiting():
    """Closing an iterator while its thread reads ahead does not wait for the read: the garbage collector closes one in
    any thread, where waiting for another thread may never end."""
    goes_on, reads = threading.Event(), threading.Event()

    class Slow(Numbers):
        def __getitem__(self, number):
            if number >= 2:
                reads.set()
                goes_on.wait(60)
            return super().__getitem__(number)

    steps = iter(StepLoader(Slow(8), [[0, 1], [2, 3], [4, 5]], 1, prefetch=True))
    next(steps)
    assert reads.wait(60)
    closing = threading.Thread(target=steps.close)
    closing.start()
    closing.join(10)
    was_closed = not closing.is_alive()
    goes_on.set()
    closing.join()
    assert was_closed


def test_the_first_samples_of_no_data_are_none():
    """The first samples of a data set without any are none, which the loader refuses as it does the data set."""
    for empty in (Numbers(0), FirstSamples(Numbers(0), 4, 8)):
        with pytest.raises(ValueError, match="no sample"):
            build_step_loader(
                empty, 0, micro_batch_size=1, micro_batch_num=1, data_parallel_rank=0, data_parallel_size=1
            )
