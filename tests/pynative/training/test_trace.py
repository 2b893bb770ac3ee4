"""--trace: the spans of a run's steps, whose sums are the steps, and whose bubble is the schedule's."""

import json
from pathlib import Path

import pytest

from parallel_core.trace import Kind, read_chrome, summary
from tests.support.distributed import run
from tests.support.pretraining import BATCHES, listening, pretrain_tiny

MODEL = f"{BATCHES} --num-layers 4 --hidden-size 64 --global-batch-size 8 --train-iters 5"
PP2 = "--pipeline-model-parallel-size 2"


def traced(backend, flags: str) -> list[str]:
    """Messages that a rank logs about its trace."""
    with listening() as said:
        pretrain_tiny(backend, f"{MODEL} {flags} --profile-step-start 2 --profile-step-end 4")
    return [line for line in said if "race" in line]


def steps_of(folder: Path) -> list:
    return summary(read_chrome(folder / "trace.json"))


@pytest.mark.parametrize(
    ("ranks", "flags"),
    [
        (1, ""),
        (2, PP2),
        (2, f"{PP2} --pipeline-schedule zb-h1"),
        (2, f"{PP2} --pipeline-schedule zb-v --num-layers 4 --untie-embeddings-and-output-weights"),
        (2, "--use-distributed-optimizer --overlap-grad-reduce"),
    ],
)
def test_the_sums_are_the_step(ranks, flags, tmp_path):
    """The parts of a step, within a percent; each action of the schedule is a span; a pipeline has a bubble."""
    (line,), *_ = run(ranks, traced, f"{flags} --trace --save {tmp_path} --save-interval 4")
    assert f"Trace of steps 3 to 4 written to {tmp_path}/trace.json: computing " in line
    spans, found = read_chrome(tmp_path / "trace.json"), steps_of(tmp_path)
    assert [(one.rank, one.step) for one in found] == [(rank, step) for rank in range(ranks) for step in (3, 4)]
    # Others use the machine, too: a step that is taken away from it between two spans says nothing of the trace.
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


def test_profile_on_a_cpu_is_a_trace(tmp_path):
    """Ranks that are asked for write it, to the folder of --profile-save-path."""
    run(2, traced, f"--profile --profile-save-path {tmp_path} --profile-ranks 1")
    assert {one.rank for one in steps_of(tmp_path)} == {1}


def test_a_step_that_does_not_come_is_said(tmp_path):
    ((line,),) = run(1, traced, f"--trace --exit-interval 2 --save {tmp_path} --save-interval 4 --exit-interval 1")
    assert line.startswith("No trace: it was to go from --profile-step-start 2 to 4")
