"""What each stage of a pipeline draws from the data, and in which form."""

import numpy as np
import pytest
from mindspore import Tensor, nn

from parallel_core.averaging import Averaging
from pynative.training.forward_step import BatchedForwardStep, MegatronForwardStep
from tests.support.distributed import run
from tests.support.engine import TINY
from tests.support.layouts import Rows
from tests.support.pretraining import pretrain_tiny

PP3 = f"{TINY} --num-layers 3 --global-batch-size 4 --train-iters 4 --pipeline-model-parallel-size 3"


class Counted:
    """A loader of steps that counts how many were drawn."""

    def __init__(self, with_masks: bool) -> None:
        self.drawn, self.with_masks = 0, with_masks

    def __iter__(self):
        rows = Rows()
        batch = {name: np.stack([rows[i][name] for i in range(4)]) for name in rows[0]}
        if self.with_masks:
            batch["attention_mask"] = np.broadcast_to(~np.tri(16, dtype=bool), (4, 1, 16, 16))
        while True:
            self.drawn += 1
            yield batch


def draws(backend, with_masks: bool, own_function: bool) -> tuple[int, float]:
    """Steps that this stage drew in four, and the last loss."""
    loader = Counted(with_masks)
    own = {"get_batch_func": lambda data_iterator: next(data_iterator)} if own_function else {}
    state = pretrain_tiny(backend, PP3, train_data_loader=loader, **own)
    return loader.drawn, state.result.loss


@pytest.mark.parametrize(
    ("with_masks", "own_function", "middle"), [(False, False, 1), (True, False, 4), (False, True, 4)]
)
def test_a_stage_in_the_middle_draws_what_it_reads(with_masks, own_function, middle):
    """After the first batch nothing, unless it has attention masks; a function of the script is always called."""
    results = run(3, draws, with_masks, own_function)
    assert [drawn for drawn, _ in results] == [4, middle, 4]
    assert len({loss for _, loss in results}) == 1


class Recorder(nn.Cell):
    """A chunk that keeps the names of what it was given."""

    def __init__(self, *unread: str) -> None:
        super().__init__()
        self.unread_entries = frozenset(unread)

    def construct(self, **given):
        self.given = given
        return given.get("labels")


def test_chunks_get_what_they_read(backend_of_one):
    """As tensors, each cut to the micro-batch; a name that no chunk expects is not hidden from it."""
    first, last = Recorder("labels"), Recorder("tokens")
    step = BatchedForwardStep()
    rows = np.arange(8).reshape(4, 2)
    step.begin(iter([{"tokens": rows, "labels": rows + 1, "lables": rows, "dataset_id": 3}]), [first, last], 2)
    for chunk, model in enumerate((first, last)):
        _, loss_of = step(model, 1, chunk)
    assert first.given.keys() == {"tokens", "lables"} and last.given.keys() == {"labels", "lables"}
    np.testing.assert_array_equal(last.given["labels"].asnumpy(), rows[2:] + 1)
    assert loss_of(Tensor(0.0)).weight.tokens == 4.0


class Unreadable:
    """A number on the device, which nobody may ask for before the end of the step."""

    reads = 0

    def __float__(self) -> float:
        self.reads += 1
        return 6.0


@pytest.mark.parametrize(("per_token", "reads"), [(True, 0), (False, 1)])
def test_numbers_of_a_script_are_read_at_the_end(backend_of_one, per_token, reads):
    """A sum needs its number of tokens earlier only where its mean is averaged with others'."""
    tokens, reported = Unreadable(), Unreadable()
    step = MegatronForwardStep(lambda data, model: (None, lambda _: (Tensor(3.0), tokens, {"loss": reported})), 1)
    step.begin(iter(()), [nn.Cell()], 2)
    _, loss_of = step(None, 0, 0)
    loss = loss_of(None)
    seed = Averaging(per_token=per_token, micro_batches=2, replicas=1).seed(loss.weight)
    assert (tokens.reads, reported.reads) == (reads, 0) and seed == (1.0 if per_token else 1 / 12)
    assert loss.read() == (6.0, 1.0, 6.0) and tokens.reads == reported.reads == 1


@pytest.fixture
def backend_of_one():
    """A job of this process alone."""
    from pynative import parallel_state
    from pynative.collectives import connect

    parallel_state.initialize_model_parallel(backend=connect())
    yield
    parallel_state.destroy_model_parallel()
