"""The files that a weight's gradient passes, from the training step to its sum over replicas inside the backward."""

import traceback
from pathlib import Path

import pytest

import pynative
from tests.support.distributed import run
from tests.support.engine import TINY
from tests.support.pretraining import pretrain_tiny

FLAGS = f"{TINY} --global-batch-size 4 --train-iters 1 --overlap-grad-reduce --ddp-bucket-size 8000"
ROOT = Path(pynative.__file__).parent
TO_ITS_KERNEL = [
    "training/train_step.py",
    "pipeline_parallel/step.py",
    "pipeline_parallel/runner.py",
    "pipeline_parallel/stage.py",
    "tape/autograd.py",
    "tensor_parallel/linear.py",
]
PRODUCTS = "tensor_parallel/products.py"
TO_ITS_SUM = [
    *TO_ITS_KERNEL[:5],
    "tape/layer_events.py",
    "distributed/overlap.py",
    "distributed/bucket.py",
    "collectives/interface.py",
    "collectives/engine.py",
]


def files() -> list[str]:
    """Files of ours on the call stack, from training/train_step.py inwards, one after another without immediate
    repeats."""
    calls = [Path(frame.filename) for frame in traceback.extract_stack()]
    ours = [str(file.relative_to(ROOT)) for file in calls if file.is_relative_to(ROOT)]
    ours = ours[ours.index("training/train_step.py") :]
    return [file for file, before in zip(ours, ["", *ours], strict=False) if file != before]


def passed(backend, flags: str) -> dict[str, list[str]]:
    """The `files` when the first weight gradient is computed ("kernel"), and when the first bucket's reduction starts
    ("sum")."""
    from pynative import kernels
    from pynative.collectives.wire.shared_memory import SharedMemoryGroup
    from pynative.training.callbacks import Callback

    found: dict[str, list[str]] = {}
    compute, reduce = kernels.linear_weight_gradient, SharedMemoryGroup._all_reduce

    def computed(*args, **named):
        found.setdefault("kernel", files())
        return compute(*args, **named)

    def reduced(self, call, *args):
        if "gradients of" in str(call):
            found.setdefault("sum", files())
        return (yield from reduce(self, call, *args))

    with pytest.MonkeyPatch.context() as patch:

        class Begin(Callback):
            def on_train_begin(self, state):
                patch.setattr(kernels, "linear_weight_gradient", computed)
                patch.setattr(SharedMemoryGroup, "_all_reduce", reduced)

        pretrain_tiny(backend, flags, callbacks=[Begin()])
    return found


def test_a_gradient_passes_twelve_files_and_none_of_them_twice():
    """The exception is `autograd`, which is re-entered to add the kernel's result to `main_grad`. architecture.md names
    the files."""
    found = run(2, passed, FLAGS)[0]
    assert found["kernel"] == [*TO_ITS_KERNEL, "tape/autograd.py", PRODUCTS]
    assert found["sum"] == TO_ITS_SUM
    assert len({*TO_ITS_KERNEL, PRODUCTS, *TO_ITS_SUM}) <= 12
