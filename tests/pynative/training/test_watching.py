"""Observers of a run: figures of the whole model, signals, hashes of weights; and evaluation without training."""

import os
import re
import signal
from unittest.mock import patch

import numpy as np
import pytest

from parallel_core.checkpoint import commit
from parallel_core.checkpoint.reader import CheckpointReader
from tests.support.distributed import run
from tests.support.pretraining import BATCHES, pretrain_tiny

UNTIED = "--untie-embeddings-and-output-weights --disable-bias-linear"
TP2 = "--tensor-model-parallel-size 2"


def figures(backend, flags: str) -> list[float]:
    """Norm of the weights and zeros of the gradient as logged at the end, and of the model of rank 0 itself."""
    state = pretrain_tiny(backend, f"{BATCHES} {flags} --log-params-norm --log-num-zeros-in-grad")
    return [state.metrics["params_norm"], state.metrics["num_zeros"]]


def test_the_norm_and_the_zeros_are_the_whole_models():
    """The same however the model is cut: what ranks share is counted once. Zero are rows of ids that did not occur."""
    norm, zeros = run(1, figures, UNTIED)[0]
    for flags in (TP2, "--pipeline-model-parallel-size 2", "--use-distributed-optimizer"):
        for cut_norm, cut_zeros in run(2, figures, f"{UNTIED} {flags}"):
            assert cut_norm == pytest.approx(norm, rel=1e-5) and cut_zeros == zeros
    assert norm > 1 and zeros >= 4 * 32 and zeros % 32 == 0, "ids 60 to 63 are never an input, of rows of 32"


def norm_of_all_weights(backend, flags: str) -> tuple[float, float]:
    state = pretrain_tiny(backend, f"{BATCHES} --log-params-norm {flags}")
    squares = (np.square(p.asnumpy().astype(np.float64)).sum() for p in state.model.get_parameters())
    return state.metrics["params_norm"], float(np.sqrt(sum(squares)))


ADAPTERS = "--lora-r 4 --lora-target-modules linear_qkv linear_fc1"


@pytest.mark.parametrize("flags", ["", ADAPTERS])
def test_the_norm_is_that_of_the_weights_after_the_update(flags):
    """It includes frozen weights."""
    logged, expected = run(1, norm_of_all_weights, flags)[0]
    assert logged == pytest.approx(expected, rel=1e-6)


def test_frozen_weights_are_counted_once():
    """Tied embeddings, and experts that ranks have apart."""
    tied, experts = ADAPTERS, f"{FOUR_EXPERTS} {ADAPTERS}"
    for flags, layout in ((tied, "--pipeline-model-parallel-size 2"), (experts, f"{EP2} --use-distributed-optimizer")):
        (norm, _), *_ = run(1, figures, flags)
        for cut_norm, _ in run(2, figures, f"{flags} {layout}"):
            assert cut_norm == pytest.approx(norm, rel=1e-5)


def stop_by_signal(backend, flags: str, number: int) -> tuple[int, bool]:
    """The last rank is told to end in the middle of step 2, and once more when the last checkpoint begins."""
    from pynative.training.callbacks import Callback

    class Kill(Callback):
        def on_gradients(self, state, gradient_scale):
            if state.iteration == 1 and backend.rank == backend.world_size - 1:
                os.kill(os.getpid(), number)

        def before_save(self, state):
            if state.should_stop:
                os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    state = pretrain_tiny(backend, f"{BATCHES} --train-iters 9 {flags} --exit-signal-handler", callbacks=[Kill()])
    return state.iteration, signal.getsignal(number) == before


@pytest.mark.parametrize("flags", ["--save-interval 100", "--save-interval 1 --async-save"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_one_rank_ends_all_after_the_same_step_with_a_checkpoint(tmp_path, number, flags):
    """Also while the checkpoint of step 1 is being written; a second signal does not end the process while it saves."""
    outcomes = run(2, stop_by_signal, f"{TP2} --save {tmp_path} {flags}", number)
    assert outcomes == [(2, True)] * 2 and commit.find(tmp_path) == tmp_path / "iter_0000002"
    assert CheckpointReader(tmp_path / "iter_0000002").damaged_files() == []


def run_out_of_time(backend, flags: str) -> int:
    """On rank 1 the first two steps take 10 minutes each, by its clock."""
    from pynative.training.callbacks import Callback, exit

    late = [0.0]

    class Clock(Callback):
        def on_step_end(self, state):
            late[0] += 600.0 * (backend.rank == 1)

    with patch.object(exit.time, "monotonic", lambda: late[0]):
        return pretrain_tiny(backend, f"{BATCHES} --train-iters 9 {flags}", callbacks=[Clock()]).iteration


@pytest.mark.parametrize("mode", ["", "--async-save"])
def test_all_ranks_end_after_the_same_step_when_time_is_over(tmp_path, mode):
    """--exit-duration-in-mins 15, by the clock of the rank that is ahead: after step 2, with a checkpoint."""
    flags = f"--exit-duration-in-mins 15 --save {tmp_path} --save-interval 1 {mode}"
    assert run(2, run_out_of_time, flags) == [2, 2] and commit.find(tmp_path).name == "iter_0000002"


def spoil_a_replica(backend, flags: str, spoiled: str) -> str:
    from pynative.training.callbacks import Callback

    class Spoil(Callback):
        def on_gradients(self, state, gradient_scale):
            if spoiled and backend.rank == 1:
                parameters = {entry.spec.name: parameter for entry, parameter in state.step_cell.buffers.entries}
                parameters[spoiled].asnumpy().reshape(-1)[0] += 1e-3

    flags = f"{BATCHES} --train-iters 1 --check-weight-hash-across-dp-replicas-interval 1 {flags}"
    try:
        pretrain_tiny(backend, flags, callbacks=[Spoil()])
    except RuntimeError as error:
        return str(error)
    return ""


FOUR_EXPERTS = "--num-experts 4 --moe-token-dispatcher-type alltoall"
EP2 = "--expert-model-parallel-size 2"


@pytest.mark.parametrize(
    ("flags", "spoiled"),
    [
        ("", ""),
        ("", "decoder.layers.1.mlp.linear_fc2.weight"),
        (f"{FOUR_EXPERTS} {EP2}", ""),
        (f"{FOUR_EXPERTS} {EP2}", "decoder.layers.1.mlp.router.weight"),
        (FOUR_EXPERTS, "decoder.layers.1.mlp.experts.local_experts.3.linear_fc2.weight"),
    ],
)
def test_replicas_that_drift_apart_are_found(flags, spoiled):
    """After the step in which it happened, on every rank, with the ranks' numbers; ranks with other experts are none's
    replicas."""
    for message in run(2, spoil_a_replica, flags, spoiled):
        assert bool(re.match(r"iteration 1: weights differ .* ranks 0, 1", message)) == bool(spoiled), message


def evaluate_only(backend, flags: str) -> tuple[int, float]:
    state = pretrain_tiny(backend, f"{BATCHES} {flags} --eval-iters 2")
    return state.iteration, state.metrics["validation_loss"]


def test_skip_train_evaluates_the_weights_as_they_are():
    """No step is made; the loss is that of initial values, ln 60 or a little more."""
    flags = ("--skip-train", "--skip-train --lr 1 --train-iters 0")
    (iteration, loss), again = (run(1, evaluate_only, more)[0] for more in flags)
    assert iteration == 0 and np.log(60) - 0.5 < loss < np.log(60) + 1 and again == (iteration, loss)
