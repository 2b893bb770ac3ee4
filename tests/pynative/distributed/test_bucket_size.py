"""The number of collectives that reduce a step's gradients: one for each bucket of the configured size."""

import numpy as np
import pytest
import yaml

from tests.support.distributed import run
from tests.support.engine import TINY
from tests.support.pretraining import pretrain_tiny

MODEL = f"{TINY} --global-batch-size 8 --clip-grad 0"
SIZE = 8000


def reduced(backend, flags: str) -> tuple[list[int], list[int], list[float], dict[str, np.ndarray]]:
    """(sizes of the parameters in the model's order; for each step the all-reduces of gradients over replicas; each
    step's loss; weights at the end)."""
    from pynative import parallel_state
    from pynative.parameter import trainable
    from pynative.training.callbacks import Callback

    sizes, calls, losses, weights = [], [], [], {}

    class Watch(Callback):
        def on_train_begin(self, state):
            sizes.extend(parameter.size for parameter in trainable(state.model))
            backend.trace.reset()

        def on_step_end(self, state):
            the_loss = 1
            calls.append(backend.trace.of(parallel_state.get_group("dp-cp").name, "all_reduce").calls - the_loss)
            losses.append(state.result.loss)
            weights.update((p.meta.spec.name, p.asnumpy().copy()) for p in trainable(state.model))
            backend.trace.reset()

    pretrain_tiny(backend, f"{MODEL} {flags}", callbacks=[Watch()])
    return sizes, calls, losses, weights


def buckets(sizes: list[int]) -> int:
    """The number of buckets for parameters of these sizes: filled from the last parameter on, and closed by the one
    that reaches SIZE elements."""
    closed, filled = 0, 0
    for size in reversed(sizes):
        filled += size
        if filled >= SIZE:
            closed, filled = closed + 1, 0
    return closed + (filled > 0)


@pytest.fixture
def documented(tmp_path):
    """A function wrap_with_ddp -> the flag of a YAML file with the documents' keys `wrap_with_ddp` and
    `bucket_size`."""

    def file(wrap_with_ddp: bool) -> str:
        keys = {"wrap_with_ddp": wrap_with_ddp, "bucket_size": SIZE}
        path = tmp_path / f"{wrap_with_ddp}.yaml"
        path.write_text(yaml.safe_dump({"train_config": {"ms_training_config": keys}}))
        return f"--yaml-cfg {path}"

    return file


def test_gradients_are_reduced_in_buckets_or_at_once(documented):
    """Wrapped: one all-reduce a bucket of `bucket_size`; not wrapped: one in all. Losses and weights are the same bits,
    being the same sums."""
    sizes, calls, losses, weights = run(2, reduced, documented(True))[0]
    assert calls == [buckets(sizes)] * 2 and calls[0] > 2
    for flags in (documented(False), "", f"--no-wrap-with-ddp --ddp-bucket-size {SIZE}"):
        _, at_once, same_losses, same_weights = run(2, reduced, flags)[0]
        assert at_once == [1, 1] and same_losses == losses
        assert all(np.array_equal(same_weights[name], weights[name]) for name in weights)
