"""Observers of a run: norms of the whole model, signals and time limits, hashes of weights; and evaluation without
training."""

import os
import re
import signal
from unittest.mock import patch

import numpy as np
import pytest

from parallel_core.checkpoint import commit
from parallel_core.checkpoint.reader import CheckpointReader
from tests.support.distributed import run
from tests.support.engine import TINY, config_of, job
from tests.support.pretraining import BATCHES, pretrain_tiny

UNTIED = "--untie-embeddings-and-output-weights --disable-bias-linear"
TP2 = "--tensor-model-parallel-size 2"


def figures(backend, flags: str) -> list[float]:
    """[norm of the weights, number of zeros in the gradient] as logged in the last step."""
    state = pretrain_tiny(backend, f"{BATCHES} {flags} --log-params-norm --log-num-zeros-in-grad")
    return [state.metrics["params_norm"], state.metrics["num_zeros"]]


def test_the_norm_and_the_zeros_are_the_whole_models():
    """tp2, pp2 and the distributed optimizer log one process's figures: shared parameters count once. Zeros are
    embedding rows of ids that did not occur."""
    norm, zeros = run(1, figures, UNTIED)[0]
    for flags in (TP2, "--pipeline-model-parallel-size 2", "--use-distributed-optimizer"):
        for cut_norm, cut_zeros in run(2, figures, f"{UNTIED} {flags}"):
            assert cut_norm == pytest.approx(norm, rel=1e-5) and cut_zeros == zeros
    assert norm > 1 and zeros >= 4 * 32 and zeros % 32 == 0, "ids 60 to 63 are never an input, of rows of 32"


def counted(backend) -> int:
    from pynative.optimizer.statistics import ModelSum

    with job(backend, config_of(TINY, 1)):
        return ModelSum().count([("dp-cp", 2**24 + 1)])


def test_large_counts_are_exact():
    """A count over the model, such as that of zero gradients, is not rounded above float32's 2^24."""
    assert run(1, counted) == [2**24 + 1]


def norm_of_all_weights(backend, flags: str) -> tuple[float, float]:
    state = pretrain_tiny(backend, f"{BATCHES} --log-params-norm {flags}")
    squares = (np.square(p.asnumpy().astype(np.float64)).sum() for p in state.model.get_parameters())
    return state.metrics["params_norm"], float(np.sqrt(sum(squares)))


ADAPTERS = "--lora-r 4 --lora-target-modules linear_qkv linear_fc1"


@pytest.mark.parametrize("flags", ["", ADAPTERS])
def test_the_norm_is_that_of_the_weights_after_the_update(flags):
    """params_norm is the norm of all weights at the step's end, frozen ones included."""
    logged, expected = run(1, norm_of_all_weights, flags)[0]
    assert logged == pytest.approx(expected, rel=1e-6)


def test_frozen_weights_are_counted_once():
    """Frozen tied embeddings, and frozen experts that ranks hold apart, enter the norm once."""
    tied, experts = ADAPTERS, f"{FOUR_EXPERTS} {ADAPTERS}"
    for flags, layout in ((tied, "--pipeline-model-parallel-size 2"), (experts, f"{EP2} --use-distributed-optimizer")):
        (norm, _), *_ = run(1, figures, flags)
        for cut_norm, _ in run(2, figures, f"{flags} {layout}"):
            assert cut_norm == pytest.approx(norm, rel=1e-5)


def stop_by_signal(backend, flags: str, number: int) -> tuple[int, bool]:
    """(last iteration, whether the signal's handler is the one from before) when the last rank gets a signal in step 2
    and another when the last checkpoint begins."""
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
    """--exit-signal-handler: also while step 1's checkpoint is written in the background; a second signal does not end
    the process while it saves."""
    outcomes = run(2, stop_by_signal, f"{TP2} --save {tmp_path} {flags}", number)
    assert outcomes == [(2, True)] * 2 and commit.find(tmp_path) == tmp_path / "iter_0000002"
    assert CheckpointReader(tmp_path / "iter_0000002").damaged_files() == []


def run_out_of_time(backend, flags: str) -> int:
    """The last iteration when rank 1's clock moves by 10 minutes in each step."""
    from pynative.training.callbacks import Callback, exit

    late = [0.0]

    class Clock(Callback):
        def on_step_end(self, state):
            late[0] += 600.0 * (backend.rank == 1)

    with patch.object(exit.time, "monotonic", lambda: late[0]):
        return pretrain_tiny(backend, f"{BATCHES} --train-iters 9 {flags}", callbacks=[Clock()]).iteration


@pytest.mark.parametrize("mode", ["", "--async-save"])
def test_all_ranks_end_after_the_same_step_when_time_is_over(tmp_path, mode):
    """--exit-duration-in-mins 15, by the clock of the rank that is ahead: all end after step 2, with a checkpoint."""
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
    """A weight changed on one replica is an error on every rank after that step, with the ranks' numbers; different
    experts are no replicas."""
    for message in run(2, spoil_a_replica, flags, spoiled):
        assert bool(re.match(r"iteration 1: weights differ .* ranks 0, 1", message)) == bool(spoiled), message


def evaluate_only(backend, flags: str) -> tuple[int, float]:
    state = pretrain_tiny(backend, f"{BATCHES} {flags} --eval-iters 2")
    return state.iteration, state.metrics["validation_loss"]


def test_skip_train_evaluates_the_weights_as_they_are():
    """--skip-train makes no step; its validation loss is that of initial values, ln 60 or a little more."""
    flags = ("--skip-train", "--skip-train --lr 1 --train-iters 0")
    (iteration, loss), again = (run(1, evaluate_only, more)[0] for more in flags)
    assert iteration == 0 and np.log(60) - 0.5 < loss < np.log(60) + 1 and again == (iteration, loss)
