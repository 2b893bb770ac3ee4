"""Recomputed parts draw the random numbers of their first run again, whatever ran in between."""

import mindspore as ms
import numpy as np
import pytest

from pynative import kernels
from pynative.step_position import StepPosition, set_step_position
from pynative.tape import autograd
from pynative.tensor_parallel.random import MODEL_PARALLEL_RNG, get_rng_tracer, set_rng_seed
from pynative.tensor_parallel.recompute import checkpoint
from tests.support.distributed import run

MICRO_BATCHES, SHAPE = 4, (8, 2, 16)


def part(x: ms.Tensor) -> ms.Tensor:
    """A user's layer: dropout with a key of a named stream and with one of the tracer's default stream."""
    tracer = get_rng_tracer()
    with tracer.rng_fork(MODEL_PARALLEL_RNG):
        x = kernels.dropout(x, 0.5, tracer.next_key())
    return kernels.dropout(x, 0.5, tracer.next_key())


def gradients_and_later_key(backend, recomputes: bool, order: list[str]) -> tuple[dict[str, np.ndarray], tuple]:
    """(micro-batch -> gradient of the input of two `part`s one after the other, key drawn next).

    order: forwards ("f0") and backwards ("b0") of micro-batches, one after the other.
    """
    set_rng_seed(5)
    inputs, outputs, found = {}, {}, {}
    once = (lambda x: checkpoint(part, False, x)) if recomputes else part
    with autograd.recording():
        for action, micro_batch in ((entry[0], int(entry[1])) for entry in order):
            set_step_position(StepPosition(iteration=3, micro_batch=micro_batch))
            if action == "f":
                inputs[micro_batch] = autograd.leaf(ms.Tensor.from_numpy(np.ones(SHAPE, np.float32)))
                outputs[micro_batch] = once(once(inputs[micro_batch]))
            else:
                autograd.backward([outputs.pop(micro_batch)], [ms.Tensor.from_numpy(np.ones(SHAPE, np.float32))])
                found[str(micro_batch)] = autograd.take_gradient(inputs.pop(micro_batch)).asnumpy()
    return found, get_rng_tracer().next_key()


ORDERS = {
    "gpipe": "f0 f1 f2 f3 b0 b1 b2 b3",
    "1f1b": "f0 f1 f2 b0 f3 b1 b2 b3",
    "reverse": "f0 f1 f2 f3 b3 b2 b1 b0",
}


@pytest.mark.parametrize("order", ORDERS)
def test_every_micro_batch_in_flight_has_its_own_random_state(order):
    """Recomputed gradients are those without recompute for each order of micro-batches; a state kept once for a cell
    would be the last forward's."""
    ((plain, _),) = run(1, gradients_and_later_key, False, ORDERS[order].split())
    ((found, _),) = run(1, gradients_and_later_key, True, ORDERS[order].split())
    assert len({gradient.tobytes() for gradient in plain.values()}) == MICRO_BATCHES
    for micro_batch, gradient in plain.items():
        assert 0 < np.count_nonzero(gradient) < gradient.size
        np.testing.assert_array_equal(found[micro_batch], gradient, err_msg=micro_batch)


def test_a_second_run_leaves_the_streams_where_they_were():
    """Recompute in a backward does not move the streams: the next key is that without recompute."""
    (_, plain), (_, found) = (run(1, gradients_and_later_key, again, ["f0", "b0"])[0] for again in (False, True))
    assert found == plain
