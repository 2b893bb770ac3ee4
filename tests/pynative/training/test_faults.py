"""Planted NaN, loss spikes and slow ranks: each is found and named by operator, layer, rank, micro-batch and row.

One run has a fault a step, so that a row costs a step of a tiny model.
"""

import re
import time
from collections import Counter
from contextlib import ExitStack
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import pytest

from parallel_core.trace import Kind, read_chrome
from tests.support.distributed import run
from tests.support.engine import TINY
from tests.support.pretraining import listening, pretrain_tiny

TP2, PP2 = "--tensor-model-parallel-size 2", "--pipeline-model-parallel-size 2"
MODEL = f"{TINY} --swiglu --normalization RMSNorm --disable-bias-linear --global-batch-size 8"


class Fault(NamedTuple):
    """A NaN in `row` of the result of the `call`-th call of an operator, in one micro-batch of a step, on one rank."""

    operator: str
    call: int
    named: str
    """Words by which the report names the place."""
    micro_batch: int = 0
    rank: int = 0
    row: int = 1
    backward: bool = False
    """The NaN is put into the gradient of the operator's first input instead."""
    once: bool = False
    """The NaN is there only the first time that the step is computed."""

    @property
    def said(self) -> str:
        """The pattern of the report."""
        if self.once:
            return rf"transient: .* on rank {self.rank}"
        direction = "backward" if self.backward or self.operator.endswith("_gradient") else "forward"
        row = "" if "weight_gradient" in self.operator else rf", row {self.row} \(sample \d+\)"
        place = rf"first in the {direction} of {self.operator} {self.named}"
        return rf"rank {self.rank}: {place}, micro-batch {self.micro_batch}{row}"


SINGLE = (
    Fault("embedding", 0, "of embedding.word_embeddings"),
    Fault("rms_norm", 2, "of decoder.layers.1.input_layernorm", micro_batch=1),
    Fault("linear_forward", 0, "of decoder.layers.0.self_attention.linear_qkv.weight", micro_batch=3),
    Fault("attention", 1, "of decoder.layers.1.self_attention", micro_batch=1, row=0),
    Fault("bias_activation", 0, "of decoder.layers.0.mlp", micro_batch=2),
    Fault("linear_forward", 7, "of decoder.layers.1.mlp.linear_fc2.weight"),
    Fault("linear_input_gradient", 1, "of decoder.layers.1.mlp.linear_fc2.weight", micro_batch=2),
    Fault("linear_weight_gradient", 2, "of decoder.layers.1.mlp.linear_fc1.weight", micro_batch=3),
    Fault("attention", 1, "of decoder.layers.1.self_attention", micro_batch=1, backward=True),
    Fault("rms_norm", 1, "of decoder.layers.0.pre_mlp_layernorm", backward=True),
    Fault("bias_activation", 1, "of decoder.layers.1.mlp", micro_batch=3, backward=True, row=0),
    Fault("linear_forward", 3, "", micro_batch=2, once=True),
    Fault("linear_input_gradient", 2, "", micro_batch=1, once=True),
)
PAIR = (
    Fault("linear_forward", 2, "of decoder.layers.0.mlp.linear_fc1.weight", micro_batch=1, rank=1),
    Fault("attention", 0, "of decoder.layers.0.self_attention", micro_batch=3, rank=1),
    Fault("linear_forward", 1, "", micro_batch=1, rank=1, once=True),
)
STAGES = (
    Fault("rms_norm", 0, "of decoder.layers.1.input_layernorm", micro_batch=2, rank=1),
    Fault("attention", 0, "of decoder.layers.0.self_attention", micro_batch=3, backward=True),
)


def planted(backend, flags: str, faults: tuple[Fault, ...]) -> list[str]:
    """Train with one fault in each step; the report about each."""
    from pynative import kernels
    from pynative.step_position import get_step_position
    from pynative.tape.autograd import Moved
    from pynative.training.callbacks import Callback, FiniteCallback
    from pynative.training.train_step import TrainOneStepCell

    calls, attempts, said = {}, {}, []

    def spoil(row: int, x):
        values = x.asnumpy()
        values[(0, row) if values.ndim > 2 else (0,)] = np.nan
        return x

    def wrapped(name: str, real):
        def operator(*inputs, **named):
            position = get_step_position()
            fault = faults[position.iteration] if position.iteration < len(faults) else None
            if fault is None or fault.operator != name or fault.micro_batch != position.micro_batch:
                return real(*inputs, **named)
            number = calls[name] = calls.get(name, -1) + 1
            if number != fault.call or backend.rank != fault.rank or (fault.once and attempts[position.iteration] > 1):
                return real(*inputs, **named)
            if fault.backward:
                moved = Moved.apply(inputs[0], lambda x: x, lambda dx: spoil(fault.row, dx))
                return real(moved, *inputs[1:], **named)
            return spoil(fault.row, real(*inputs, **named))

        return operator

    attempt = TrainOneStepCell._attempt

    def counted(cell, *arguments, **named):
        iteration = get_step_position().iteration
        attempts[iteration] = attempts.get(iteration, 0) + 1
        calls.clear()
        return attempt(cell, *arguments, **named)

    class Plant(Callback):
        def on_train_begin(self, state):
            for name in {fault.operator for fault in faults}:
                stack.enter_context(patch.object(kernels, name, wrapped(name, getattr(kernels, name))))
            stack.enter_context(patch.object(TrainOneStepCell, "_attempt", counted))
            stack.enter_context(patch.object(FiniteCallback, "on_step_end", lambda *_: None))

        def on_step_end(self, state):
            said.append(state.result.explanation or next((line for line in lines if "transient" in line), ""))
            lines.clear()

    with listening() as lines, ExitStack() as stack:
        pretrain_tiny(backend, f"{MODEL} {flags} --train-iters {len(faults)}", callbacks=[Plant()])
    return said


@pytest.mark.parametrize(
    ("ranks", "flags", "faults"), [(1, "", SINGLE), (2, "", PAIR), (2, PP2, STAGES), (2, TP2, PAIR[:2])]
)
def test_planted_values_that_are_no_numbers_are_named(ranks, flags, faults):
    """Each step's NaN is reported with its place; those that do not repeat are told to be transient, and the run goes
    on."""
    faults = tuple(fault._replace(micro_batch=fault.micro_batch % 4) for fault in faults)
    found = run(ranks, planted, flags, faults)[0]
    wrong = [(f.said, text) for f, text in zip(faults, found, strict=True) if not re.search(f.said, text, re.DOTALL)]
    assert not wrong, "\n".join(f"--- expected {said}\n{text}" for said, text in wrong)


def ruined(backend, flags: str) -> str:
    """The error text of training with a NaN in a weight."""
    from pynative.training.callbacks import Callback

    class Ruin(Callback):
        def on_train_begin(self, state):
            for parameter in state.model.get_parameters():
                if parameter.meta.spec.name == "decoder.layers.1.mlp.linear_fc1.weight":
                    parameter.asnumpy()[0, 0] = np.nan

    with pytest.raises(FloatingPointError) as caught:
        pretrain_tiny(backend, f"{MODEL} {flags}", callbacks=[Ruin()])
    return str(caught.value)


def test_weights_that_hold_no_number_go_before_operators():
    """The error says that a weight was NaN before the step; with --rerun-mode disabled it names the gradient alone."""
    assert "no number in the weights decoder.layers.1.mlp.linear_fc1.weight" in run(1, ruined, "")[0]
    assert "weights" not in run(1, ruined, "--rerun-mode disabled")[0]


def spikes(backend, flags: str, write_seconds: float = 0.0) -> tuple[list[tuple[int, float, bool]], list[str]]:
    """((iteration, loss, skipped) of each of 30 steps, lines about a spike), where step 25's loss is ten times too high
    until it was told. write_seconds: how much longer it takes to write a checkpoint."""
    from pynative import kernels
    from pynative.checkpointing.save import Saving
    from pynative.step_position import get_step_position
    from pynative.training.callbacks import Callback

    steps, counts = [], []

    class Plant(Callback):
        def on_train_begin(self, state):
            real = kernels.masked_mean

            def mean(losses, *rest):
                wrong = get_step_position().iteration == 24 and not counts
                return kernels.scale(real(losses, *rest), 10.0) if wrong else real(losses, *rest)

            stack.enter_context(patch.object(kernels, "masked_mean", mean))
            write = Saving.write
            stack.enter_context(patch.object(Saving, "write", lambda self: (time.sleep(write_seconds), write(self))))

        def on_step_end(self, state):
            steps.append((state.iteration, state.result.loss, state.result.skipped))
            counts.extend([1] if state.result.spike else [])

    with listening() as lines, ExitStack() as stack:
        pretrain_tiny(backend, f"{TINY} --train-iters 30 --loss-spike-deviations 20 {flags}", callbacks=[Plant()])
    return steps, [line for line in lines if "a loss spike" in line]


@pytest.mark.parametrize("action", ["report", "skip", "rollback"])
def test_a_loss_spike(action, tmp_path):
    """--loss-spike-action: report says that it repeats; skip skips the update; rollback goes back to the last
    checkpoint and on behind the step's data."""
    flags = f"--loss-spike-action {action}" + (f" --save {tmp_path} --save-interval 10" if action == "rollback" else "")
    (steps, said), _ = run(2, spikes, flags)
    assert "iteration 25: a loss spike" in said[0] and "repeatable" in said[0]
    (spike,) = [step for step in steps if step[1] > 20]
    assert spike[0] == 25 and spike[2] == (action != "report")
    if action == "rollback":
        assert [step[0] for step in steps] == [*range(1, 26), *range(21, 31)]
        assert "went back to" in said[1] and "step 20; data go on behind sample 100" in said[1]
    else:
        assert [step[0] for step in steps] == [*range(1, 31)]


def test_steps_that_come_again_are_traced_once(tmp_path):
    """A rollback from a traced step behind the first traced one leaves each step in the trace once, and ends the
    recording with the last."""
    flags = f"--loss-spike-action rollback --save {tmp_path} --save-interval 22 --trace"
    run(2, spikes, f"{flags} --profile-step-start 23 --profile-step-end 28")
    spans = read_chrome(tmp_path / "trace.json")
    whole = Counter((span.rank, span.step) for span in spans if span.kind is Kind.STEP)
    assert whole == {(rank, step): 1 for rank in range(2) for step in range(24, 29)}


def test_a_rollback_finishes_the_checkpoint_under_way(tmp_path):
    """--async-save: a rollback waits for the checkpoint that is being written, and goes back to that one."""
    flags = f"--loss-spike-action rollback --save {tmp_path} --save-interval 24 --async-save"
    (steps, said), _ = run(2, spikes, flags, 1.0)
    assert [step[0] for step in steps] == [*range(1, 26), *range(25, 31)]
    assert "went back to" in said[1] and "step 24; data go on behind sample 100" in said[1]


def slow(backend, owner: str, name: str) -> list[str]:
    """Lines of the report about a training in which each call of a function takes 50 ms longer on rank 1."""
    from pynative.training.callbacks import Callback

    module, _, inside = owner.partition(":")
    place = __import__(module, fromlist=["_"])
    place = getattr(place, inside) if inside else place

    class Plant(Callback):
        def on_train_begin(self, state):
            real = getattr(place, name)

            def delayed(*arguments, **named):
                time.sleep(0.05 * backend.rank)
                return real(*arguments, **named)

            stack.enter_context(patch.object(place, name, delayed))

    with listening() as lines, ExitStack() as stack:
        flags = f"{TINY} --global-batch-size 8 --train-iters 3 --log-straggler --log-interval 3"
        pretrain_tiny(backend, flags, callbacks=[Plant()])
    return [line for line in lines if "slow in" in line or "Straggler report" in line]


STRAGGLERS = (
    ("pynative.kernels", "attention", "forward-compute"),
    ("pynative.tape.autograd:HandedOver", "backward", "backward-compute"),
    ("tests.support.layouts:Rows", "__getitem__", "batch-generator"),
    ("pynative.optimizer.flat_optimizer:FlatOptimizer", "step", "optimizer"),
    ("pynative.optimizer.statistics:GradientNorm", "__call__", "optimizer-clip-main-grad"),
)


@pytest.mark.parametrize("row", range(len(STRAGGLERS)))
def test_a_slow_rank_is_named_with_its_part(row):
    """--log-straggler names rank 1 and the slow part of its step; rank 0's waiting for it does not count as its own
    time."""
    owner, name, part = STRAGGLERS[row]
    report, *said = run(2, slow, owner, name)[0]
    assert "slowest" in report and "(rank 1)" in report.split("slowest")[1]
    assert any(f"rank 1 is slow in {part}:" in line for line in said), said
