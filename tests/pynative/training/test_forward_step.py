"""The data that each pipeline stage draws, and the form in which model and script get them."""

from contextlib import nullcontext
from dataclasses import replace
from weakref import ref

import numpy as np
import pytest
from mindspore import Tensor, nn

from parallel_core.batch.rules import BatchRules
from parallel_core.numerics.averaging import Averaging
from pynative.training import batch_check
from pynative.training.forward_step import BatchedForwardStep, MegatronForwardStep
from tests.support.distributed import run
from tests.support.engine import TINY, config_of
from tests.support.layouts import Rows
from tests.support.pretraining import pretrain_tiny

RULES = BatchRules.of(config_of(f"{TINY} --seq-length 2", 1))
PP3 = f"{TINY} --num-layers 3 --global-batch-size 4 --train-iters 4 --pipeline-model-parallel-size 3"


class Counted:
    """An endless loader that counts in `drawn` how many steps were drawn."""

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
    """(number of steps that this stage drew from its loader in four steps, last loss)."""
    loader = Counted(with_masks)
    own = {"get_batch_func": lambda data_iterator: next(data_iterator)} if own_function else {}
    state = pretrain_tiny(backend, PP3, train_data_loader=loader, **own)
    return loader.drawn, state.result.loss


@pytest.mark.parametrize(
    ("with_masks", "own_function", "middle"), [(False, False, 1), (True, False, 4), (False, True, 4)]
)
def test_a_stage_in_the_middle_draws_what_it_reads(with_masks, own_function, middle):
    """A middle stage draws the first batch alone, or every one if batches have attention masks or the script has its
    own batch function."""
    results = run(3, draws, with_masks, own_function)
    assert [drawn for drawn, _ in results] == [4, middle, 4]
    assert len({loss for _, loss in results}) == 1


def test_an_iterator_without_use_is_not_kept(backend_of_one):
    """If a script makes an iterator for each step, only the last is kept alive, to go on drawing from it."""
    step, chunk = BatchedForwardStep(), Recorder("tokens")
    alive = []
    for _ in range(3):
        items = ({"tokens": np.zeros((2, 2), np.int32)} for _ in range(2))
        alive.append(ref(items))
        for _ in range(2):
            step.begin(items, [chunk], 1, RULES)
        assert len(list(items)) == 1
    del items
    assert [iterator() is None for iterator in alive] == [True, True, False]


class Recorder(nn.Cell):
    """A chunk that does not read these entries of a batch (`unread_entries`), and keeps in `given` what it gets."""

    def __init__(self, *unread: str) -> None:
        super().__init__()
        self.unread_entries = frozenset(unread)

    def construct(self, **given):
        self.given = given
        return given.get("labels")


def test_chunks_get_what_they_read(backend_of_one):
    """Each virtual chunk gets the entries that it reads, as tensors cut to the micro-batch; a misspelt name is passed
    to it, not hidden."""
    first, last = Recorder("labels"), Recorder("tokens")
    step = BatchedForwardStep()
    rows = np.arange(8).reshape(4, 2)
    step.begin(iter([{"tokens": rows, "labels": rows + 1, "lables": rows, "dataset_id": 3}]), [first, last], 2, RULES)
    for chunk, model in enumerate((first, last)):
        _, loss_of = step(model, 1, chunk)
    assert first.given.keys() == {"tokens", "lables"} and last.given.keys() == {"labels", "lables"}
    np.testing.assert_array_equal(last.given["labels"].asnumpy(), rows[2:] + 1)
    assert loss_of(Tensor(0.0)).weight.tokens == 4.0


class Unreadable:
    """A number on the device that counts in `reads` how often it is copied to the host."""

    reads = 0

    def __float__(self) -> float:
        self.reads += 1
        return 6.0


@pytest.mark.parametrize(("per_token", "reads"), [(True, 0), (False, 1)])
def test_numbers_of_a_script_are_read_at_the_end(backend_of_one, per_token, reads):
    """A script's number of tokens is copied from the device at the step's end; before it only where means are averaged
    over micro-batches."""
    tokens, reported = Unreadable(), Unreadable()
    step = MegatronForwardStep(lambda data, model: (None, lambda _: (Tensor(3.0), tokens, {"loss": reported})), 1)
    chunk = nn.Cell()
    step.begin(iter(()), [chunk], 2, RULES)
    _, loss_of = step(chunk, 0, 0)
    loss = loss_of(None)
    seed = Averaging(per_token=per_token, micro_batches=2, replicas=1).seed(loss.weight)
    assert (tokens.reads, reported.reads) == (reads, 0) and seed == (1.0 if per_token else 1 / 12)
    assert loss.read() == (6.0, 1.0, 6.0) and tokens.reads == reported.reads == 1


def test_ids_are_judged_when_a_script_draws_them(backend_of_one):
    """A label beyond the vocabulary is an error when a script draws the batch, as the model may never see labels; -100
    and padded ids pass."""
    step, chunk = MegatronForwardStep(lambda data, model: (next(data), None), 1), nn.Cell()
    for label, is_wrong in ((63, False), (-100, False), (64, True), (-1, True)):
        step.begin(iter([{"labels": np.array([[1, label, 2]])}]), [chunk], 1, RULES)
        with pytest.raises(ValueError, match="labels") if is_wrong else nullcontext():
            drawn, _ = step(chunk, 0, 0)
            assert drawn["labels"].asnumpy().tolist() == [[1, label, 2]]


@pytest.mark.parametrize("is_list", [True, False])
def test_a_step_that_runs_again_draws_the_same(backend_of_one, is_list):
    """A rerun draws what the step drew, each chunk from its own iterator, with None for a chunk that had none; chunks
    that share one iterator draw the same."""
    step = MegatronForwardStep(lambda data, model: (None if data is None else next(data), None), 1)
    chunks = [nn.Cell() for _ in range(3)]
    items = [None, iter([{"x": Tensor(1)}]), iter([{"x": Tensor(2)}])] if is_list else iter([{"x": Tensor(1)}])
    step.begin(items, chunks, 1, RULES)
    for _ in range(3):
        drawn = [step(chunk, 0, place)[0] for place, chunk in enumerate(chunks)]
        assert [item and int(item["x"]) for item in drawn] == ([None, 1, 2] if is_list else [1, 1, 1])
        step.again()


def test_the_last_micro_batch_of_the_data_is_filled_up(backend_of_one):
    """With fills_up a short micro-batch is filled with rows whose loss mask is 0, which a script's forward step gets as
    well."""
    step, chunk = MegatronForwardStep(lambda data, model: (next(data), None), 1), nn.Cell()
    ids = np.array([[1, 2]], np.int32)
    step.begin(iter([{"tokens": ids, "labels": ids + 1}]), [chunk], 1, replace(RULES, fills_up=True))
    drawn, _ = step(chunk, 0, 0)
    assert {name: tensor.asnumpy().tolist() for name, tensor in drawn.items()} == {
        "tokens": [[1, 2], [0, 0]], "labels": [[2, 3], [0, 0]], "loss_mask": [[1, 1], [0, 0]]
    }  # fmt: skip


class Reads(nn.Cell):
    """A chunk that returns its tokens."""

    def construct(self, tokens):
        return tokens


def test_nothing_is_read_from_a_device(backend_of_one, monkeypatch):
    """On an Ascend, values that a script computes are not copied to be checked, only type and shape are; a loader's own
    values are checked."""
    monkeypatch.setattr(batch_check.ms, "get_context", lambda name: "Ascend")
    drawn = []

    def computes(data, model):
        item = next(data)
        drawn.append(item["tokens"])
        given = item["tokens"] if len(drawn) == 1 else item["tokens"] * 40 if len(drawn) == 2 else item["tokens"][:1]
        return model(given), None

    step, chunk = MegatronForwardStep(computes, 1), Reads()
    tokens = Tensor(np.array([[1, 2], [3, 4]], np.int32))
    step.begin(
        iter([{"tokens": np.array([[1, 2], [3, 4]], np.int32)}, {"tokens": tokens}, {"tokens": tokens}]),
        [chunk],
        1,
        RULES,
    )
    step(chunk, 0, 0)
    with monkeypatch.context() as patched:
        patched.setattr(Tensor, "asnumpy", None)
        step(chunk, 0, 0)
        with pytest.raises(ValueError, match="tokens has 1 rows, 2 are due"):
            step(chunk, 0, 0)
    assert drawn[0].batch_entry


def test_other_calls_of_a_model_are_free(backend_of_one):
    """Calls of the model outside of the script's forward step are not checked."""
    chunk = Reads()
    step = MegatronForwardStep(lambda data, model: (model(next(data)["tokens"]), None), 1)
    step.begin(iter([{"tokens": np.zeros((2, 2), np.int32)}] * 2), [chunk], 1, RULES)
    step(chunk, 0, 0)
    assert chunk(Tensor(np.zeros((5, 7), np.float32))).shape == (5, 7)


@pytest.fixture
def backend_of_one():
    """The parallel state of a job of this process alone."""
    from pynative import parallel_state
    from pynative.collectives import connect

    parallel_state.initialize_model_parallel(backend=connect())
    yield
    parallel_state.destroy_model_parallel()
