"""--trace: the spans of a run's steps, which add up to the steps, and whose bubble is the schedule's."""

import json
import time
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import pytest

from parallel_core.schedules import GENERATORS
from parallel_core.schedules.actions import Placement, WeightGrad, producer
from parallel_core.schedules.simulate import Times, simulate
from parallel_core.trace import Kind, read_chrome, summary
from pynative.parallel_state import get_pipeline_model_parallel_rank
from pynative.step_position import get_step_position
from tests.support.distributed import run
from tests.support.engine import TINY
from tests.support.pretraining import BATCHES, listening, pretrain_tiny
from tests.support.trace_file import slices

MODEL = f"{BATCHES} --num-layers 4 --hidden-size 64 --global-batch-size 8 --train-iters 5"
PP2 = "--pipeline-model-parallel-size 2"


def traced(backend, flags: str) -> list[str]:
    """Lines that this rank logs about its trace, of a training with spans of steps 2 to 4."""
    with listening() as said:
        pretrain_tiny(backend, f"{MODEL} {flags} --profile-step-start 2 --profile-step-end 4")
    return [line for line in said if "race" in line]


def steps_of(folder: Path) -> list:
    return summary(read_chrome(folder / "trace.json"))


@pytest.mark.parametrize(
    ("ranks", "flags"),
    [
        (1, "--eval-interval 1 --eval-iters 2"),
        (2, PP2),
        (2, f"{PP2} --pipeline-schedule zb-h1"),
        (2, f"{PP2} --pipeline-schedule zb-v --num-layers 4 --untie-embeddings-and-output-weights"),
        (2, "--use-distributed-optimizer --overlap-grad-reduce"),
    ],
)
def test_the_sums_are_the_step(ranks, flags, tmp_path):
    """A step's parts add up to it within a percent; each action of the schedule is a span, evaluation has none; a
    pipeline has a bubble."""
    (line,), *_ = run(ranks, traced, f"{flags} --trace --save {tmp_path} --save-interval 4")
    assert f"Trace of steps 3 to 4 written to {tmp_path}/trace.json: computing " in line
    spans, found = read_chrome(tmp_path / "trace.json"), steps_of(tmp_path)
    assert sum(map(len, slices(tmp_path / "trace.json").values())) == len(spans)
    assert [(one.rank, one.step) for one in found] == [(rank, step) for rank in range(ranks) for step in (3, 4)]
    # The best step counts: on a busy machine other processes may run between two spans.
    assert min(abs(one.unknown) / one.total for one in found) < 0.01
    for one in found:
        assert (one.bubble > 0) == (PP2 in flags)
        own = [span for span in spans if (span.rank, span.step) == (one.rank, one.step)]
        kinds = [span.kind for span in own]
        computed = 2 if "distributed" in flags else 8 if "zb-v" in flags else 4
        assert kinds.count(Kind.FORWARD) == kinds.count(Kind.BACKWARD) == computed
        assert kinds.count(Kind.WEIGHT_GRADIENTS) == (computed if "zb" in flags else 0)
        assert kinds.count(Kind.CHECKPOINT) == (one.step == 4)
    assert 0 <= json.loads((tmp_path / "trace.json").read_text())["planned"]["bubble_share"] < 0.5


SECONDS = Times(forward=3, backward=7, weight=3)
"""Seconds of a micro-batch's computations on a stage, on `Clock`."""


class Clock:
    """A rank's clock, which the end of a computation sets forward, and the arrival of what another rank's has made: so
    that the spans of a trace depend on the schedule alone, however busy the machine is.

    Args:
        folder: where every rank leaves the times at which its computations ended.
    """

    def __init__(self, folder: Path, placement: Placement, splits: bool) -> None:
        self.folder, self.placement, self.splits, self.now = folder, placement, splits, 0.0

    def perf_counter(self) -> float:
        return self.now

    monotonic = staticmethod(time.monotonic)

    def compute(self, real):
        def computed(stage, action, inputs):
            results = real(stage, action, inputs)
            own = get_pipeline_model_parallel_rank()
            self.now += float(SECONDS.of(action, own, self.placement.chunks, self.splits))
            self._place(action, own).write_text(str(self.now))
            return results

        return computed

    def exchange(self, real):
        def exchanged(channel, exchange, results):
            arrivals = real(channel, exchange, results)
            return {action: Arrival(self, action, handle) for action, handle in arrivals.items()}

        return exchanged

    def global_loss(self, real):
        """Set the clock to the end of the last rank, when the sum of the losses over all ranks is there."""

        def summed(step, figures):
            result = real(step, figures)
            self.now = max(float(path.read_text()) for path in self.folder.glob("ended-*"))
            return result

        return summed

    def arrive(self, action) -> None:
        made, peer = producer(action, get_pipeline_model_parallel_rank(), self.placement)
        self.now = max(self.now, float(self._place(made, peer).read_text()))

    def _place(self, action, stage: int) -> Path:
        kind, iteration = type(action).__name__, get_step_position().iteration
        return self.folder / f"ended-{iteration}-{kind}-{action.micro_batch}-{action.chunk}-{stage}"


class Arrival:
    """The handle of a message: `wait` sets the clock to the time at which the sender had computed it."""

    def __init__(self, clock: Clock, action, handle) -> None:
        self.clock, self.action, self.handle = clock, action, handle

    def wait(self):
        result = self.handle.wait()
        self.clock.arrive(self.action)
        return result


def clocked(backend, flags: str, folder: str, placement: Placement, splits: bool) -> None:
    """Trace a training whose times are `Clock`'s."""
    from pynative import timers
    from pynative.collectives import engine, trace
    from pynative.pipeline_parallel.channel import Channel
    from pynative.pipeline_parallel.stage import Stage
    from pynative.pipeline_parallel.step import PipelineStep

    clock = Clock(Path(folder), placement, splits)
    changes = ((Stage, "compute"), (Channel, "exchange"), (PipelineStep, "_global_loss"))
    with ExitStack() as stack:
        for module in (timers, engine, trace):
            stack.enter_context(patch.object(module, "time", clock))
        for owner, name in changes:
            change = getattr(clock, name.strip("_"))(getattr(owner, name))
            stack.enter_context(patch.object(owner, name, change))
        pretrain_tiny(backend, f"{TINY} {flags} --trace --profile-step-start 0 --profile-step-end 2")


PIPELINES = (
    ("1f1b", 2, 1, 4),
    ("gpipe", 2, 1, 3),
    ("zb-h1", 2, 1, 4),
    ("interleaved", 2, 2, 4),
    ("zb-v", 2, 2, 4),
    ("1f1b", 4, 1, 4),
    ("zb-h1", 4, 1, 6),
)
"""(schedule, stages, chunks a stage, micro-batches)."""


@pytest.mark.parametrize(("schedule", "stages", "chunks", "micro_batches"), PIPELINES)
def test_the_bubble_is_the_simulators(schedule, stages, chunks, micro_batches, tmp_path):
    """On `Clock` each stage waits in each step as long as `simulate` says of the schedule, a figure that the trace has
    beside it."""
    flags = f"--pipeline-model-parallel-size {stages} --num-layers {stages * chunks} --global-batch-size"
    flags += f" {2 * micro_batches} --untie-embeddings-and-output-weights --save {tmp_path} --save-interval 9"
    flags += "" if chunks == 1 else f" --num-virtual-stages-per-pipeline-rank {chunks}"
    flags += f" --pipeline-schedule {schedule}"
    computes = GENERATORS[schedule](stages, micro_batches, chunks, None)
    placement = Placement(stages, chunks, folded=schedule == "zb-v")
    splits = any(isinstance(action, WeightGrad) for action in computes[0])
    run(stages, clocked, flags, str(tmp_path), placement, splits)
    timeline = simulate(computes, SECONDS, placement)
    planned = [float(1 - work / timeline.length) for work in timeline.work]
    measured = {(one.rank, one.step): one.bubble_share for one in steps_of(tmp_path)}
    expected = {(rank, step): share for rank, share in enumerate(planned) for step in (1, 2)}
    assert measured == pytest.approx(expected, abs=1e-4)
    assert slices(tmp_path / "trace.json")
    beside = json.loads((tmp_path / "trace.json").read_text())["planned"]["bubble_share"]
    assert beside == pytest.approx(sum(planned) / stages, abs=1e-4)


def test_profile_on_a_cpu_is_a_trace(tmp_path):
    """--profile on a CPU writes our trace into --profile-save-path, by the ranks of --profile-ranks alone."""
    run(2, traced, f"--profile --profile-save-path {tmp_path} --profile-ranks 1")
    assert {one.rank for one in steps_of(tmp_path)} == {1}


def compared(backend, flags: str) -> tuple[int, bool]:
    """(the number of steps in the spans that this rank compares with the plan, whether it still records at the run's
    end)."""
    from pynative.training.callbacks import beside

    with patch.object(beside, "compare", wraps=beside.compare) as asked:
        state = pretrain_tiny(backend, f"{MODEL} {flags} --profile-step-start 0 --profile-step-end 3")
    (call,) = asked.call_args_list
    return [span.kind for span in call.args[3]].count(Kind.STEP), state.step_cell.timers.recorded is not None


def test_ranks_outside_of_a_trace_keep_no_spans(tmp_path):
    """A rank that --profile-ranks leaves out compares its plan with one step, as the traced rank does."""
    assert run(2, compared, f"--trace --save {tmp_path} --save-interval 4 --profile-ranks 1") == [(1, False)] * 2
    assert {one.rank for one in steps_of(tmp_path)} == {1}


def test_a_step_that_does_not_come_is_said(tmp_path):
    """--trace in a run that ends before the traced steps logs one line that there is no trace."""
    ((line,),) = run(1, traced, f"--trace --exit-interval 2 --save {tmp_path} --save-interval 4 --exit-interval 1")
    assert line.startswith("No trace: it was to go from --profile-step-start 2 to 4")
