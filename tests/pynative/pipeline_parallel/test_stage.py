"""`Stage`: the tensors that it keeps between a micro-batch's forward and backward."""

import gc
import weakref

import numpy as np
import pytest
from mindspore import Tensor, nn

from parallel_core.numerics.averaging import Averaging, MicroBatchWeight
from parallel_core.schedules import Backward, Forward
from pynative import kernels
from pynative.pipeline_parallel.stage import MicroBatchLoss, Stage
from pynative.startup import device


class Doubling(nn.Cell):
    """A chunk of the model that returns x + x for the x that the stage before sent."""

    def set_input_tensor(self, x: Tensor) -> None:
        self.x = x

    def construct(self) -> Tensor:
        return kernels.bias_dropout_add(self.x, None, self.x)


class ForwardStep:
    """A forward step that runs the chunk and takes the sum of the last one's output as loss."""

    def begin(self, data_iterator, model, micro_batches, rules) -> None:
        """Nothing to do: there are no data."""

    def __call__(self, model, micro_batch, chunk):
        return model(), lambda y: MicroBatchLoss(y.sum(), MicroBatchWeight(1.0))


def stage(is_last: bool) -> Stage:
    """A stage of one Doubling chunk, begun for a training step of two micro-batches."""
    device.initialize("CPU", "host", 1, 1)
    averaging = Averaging(per_token=False, micro_batches=2, replicas=1)
    made = Stage(nn.CellList([Doubling()]), averaging, is_last, lambda micro_batch, chunk: None)
    made.begin(ForwardStep(), train=True)
    return made


def hidden_states(value: float) -> Tensor:
    return Tensor.from_numpy(np.full((2, 1, 3), value, np.float32))


def test_what_was_sent_is_not_kept_for_the_backward():
    """After sending its output a stage keeps the input alone, which the layers need: with p micro-batches in flight
    outputs would be p tensors more."""
    middle = stage(is_last=False)
    sent = [middle.compute(Forward(m), [hidden_states(m)])[0] for m in range(2)]
    left = [weakref.ref(output) for output in sent]
    assert sent[1].asnumpy().flat[0] == 2.0
    del sent
    gc.collect()
    assert [output() for output in left] == [None, None]
    gradients = [middle.compute(Backward(m), [hidden_states(m + 5)])[0].asnumpy().flat[0] for m in (1, 0)]
    assert gradients == [12.0, 10.0]


def test_losses_are_read_at_the_end_of_the_step(monkeypatch):
    """No loss is copied to the host during micro-batches, as the host would wait for the device at each."""
    last, read, asnumpy = stage(is_last=True), [], Tensor.asnumpy
    monkeypatch.setattr(Tensor, "asnumpy", lambda tensor: read.append(id(tensor)) or asnumpy(tensor))
    for micro_batch in range(2):
        last.compute(Forward(micro_batch), [hidden_states(micro_batch + 1.0)])
        last.compute(Backward(micro_batch), [None])
    losses = [id(loss.loss) for loss in last.losses]
    assert len(losses) == 2 and not set(losses) & set(read)
    assert [loss.read() for loss in last.losses] == [(12.0, 1.0, 1.0), (24.0, 1.0, 1.0)]


def test_nothing_is_kept_after_the_backward():
    """After a micro-batch's backward neither its input nor its graph is alive."""
    last = stage(is_last=True)
    received = hidden_states(1.0)
    left = weakref.ref(received)
    last.compute(Forward(0), [received])
    assert last.compute(Backward(0), [None])[0].asnumpy().flat[0] == pytest.approx(
        2.0 / 2
    )  # averaged over micro-batches
    del received
    last.model[0].set_input_tensor(None)
    gc.collect()
    assert left() is None
