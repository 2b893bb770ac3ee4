"""A job trains to the same bits every time in a process, wherever its arrays lie and however its flat buffers are
padded."""

import pytest

from tests.support.addresses import allocations_at
from tests.support.distributed import run
from tests.support.families import FAMILIES
from tests.support.pretraining import BATCHES, pretrain_tiny

FORMS = [
    # (offset of every allocation from a page, flags that change only the layout of buffers)
    (0, ""),
    (16, ""),
    (32, "--enable-mem-align"),
    (48, "--use-distributed-optimizer"),
    (64, "--overlap-grad-reduce --ddp-bucket-size 5000"),
    (4096, "--use-distributed-optimizer --enable-mem-align"),
]


def trained(backend, flags: str) -> list[list]:
    """For each form of the run the bits of losses and gradient norms of every step, then of all weights."""
    from pynative.training.callbacks import Callback

    found = []

    class Seen(Callback):
        def on_step_end(self, state):
            found[-1].append((state.result.loss, state.result.gradient_norm))
            self.buffers = state.step_cell.buffers

    for offset, layout in FORMS:
        found.append([])
        with allocations_at(offset):
            seen = Seen()
            pretrain_tiny(backend, f"{BATCHES} --train-iters 3 {flags} {layout}", callbacks=[seen])
            entries = sorted((entry.spec.name, parameter) for entry, parameter in seen.buffers.entries)
            found[-1] += [(name, parameter.asnumpy().tobytes()) for name, parameter in entries]
    return found


@pytest.mark.parametrize("family", ["gpt tied, dropout", "latent attention", "experts"])
def test_a_job_trains_to_the_same_bits(family):
    """Losses, norms and weights have the same bits in each of FORMS, offsets of memory and layouts of buffers."""
    (forms,) = run(1, trained, FAMILIES[family])
    for (offset, layout), form in zip(FORMS, forms, strict=True):
        assert form == forms[0], f"moved by {offset} bytes, {layout or 'laid out alike'}"
