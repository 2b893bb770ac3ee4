"""The figures, events and trace that a run writes for its report, and the page made of them."""

import json
from pathlib import Path
from unittest.mock import patch

import pytest

from parallel_core.report import Run, page_of
from parallel_core.report.parts import Lines
from tests.support.distributed import run
from tests.support.pretraining import BATCHES, pretrain_tiny

PP2 = "--pipeline-model-parallel-size 2 --eval-interval 2 --eval-iters 1 --trace --profile-step-start 1"
FOUR_EXPERTS = "--num-experts 4 --moe-token-dispatcher-type alltoall --moe-router-topk 2"


def train(backend, flags: str) -> None:
    from pynative.training.callbacks import BesideCallback

    with patch.object(BesideCallback, "counts_arrays", True):
        pretrain_tiny(backend, f"{BATCHES} {flags}")


def read(folder: Path) -> Run:
    found = Run(folder)
    found.refresh()
    return found


def test_a_runs_page_has_everything(tmp_path):
    """The page of a pipeline run with experts, evaluations and a trace has all nine sections, with planned steps,
    seconds and bytes beside the measured ones."""
    flags = f"{PP2} {FOUR_EXPERTS} --profile-step-end 3 --train-iters 4 --save {tmp_path} --save-interval 4"
    run(2, train, f"{flags} --distributed-timeout-minutes 7")
    page = page_of([read(tmp_path)])
    sections = {section.id: section for section in page.sections}
    assert list(sections) == [
        *("overview", "learning", "speed", "experts", "timeline", "events", "flags", "configuration", "environment"),
    ]
    plots = {plot.title: plot for section in page.sections for plot in section.plots if isinstance(plot, Lines)}
    assert {"Loss", "Validation loss", "Gradient norm", "Learning rate", "Loss scale"} <= set(plots)
    assert {"Tokens per second", "MFU", "Time of a step"} <= set(plots)
    assert plots["Validation loss"].series[0].x["step"] == [2, 4] and len(plots["Loss"].series[0].y) == 4
    over_steps, newest = sections["experts"].plots
    assert over_steps.y == newest.y == ["0", "1"] and [sum(row) for row in newest.z] == pytest.approx([4, 4], rel=1e-5)
    (step,) = sections["timeline"].plots
    assert step.rows == ["rank 0", "rank 1", "planned stage 0", "planned stage 1"]
    forwards = [row for row, *_ in step.kinds["forward"]]
    assert forwards.count("planned stage 0") == forwards.count("planned stage 1") == 2
    flag = dict(sections["flags"].tables[0].rows)["--pipeline-model-parallel-size"]
    assert flag == "2: mapped -> parallel_config.pipeline_model_parallel_size"
    assert dict(sections["configuration"].tables[0].rows)["moe_config.num_experts"] == "4"
    (seconds, memory) = sections["overview"].tables[-2:]
    assert "seconds of step 2 beside the plan on CPU" in seconds.caption
    assert {"forward", "backward", "bubble", "optimizer", "total"} <= {row[0] for row in seconds.rows}
    assert all(row[1] != "-" and row[2] != "-" for row in seconds.rows)
    assert [(row[0], row[3]) for row in memory.rows[:3]] == [
        (name, "1") for name in ("weights", "gradients", "optimizer")
    ]
    assert memory.rows[3][0] == "activations" and float(memory.rows[3][3]) > 0.5
    environment = dict(sections["environment"].tables[0].rows)
    assert environment["mindspore"].startswith("2.") and environment["python"]


def test_restarts_and_errors_are_events(tmp_path):
    """events.jsonl has start, resume, end, warning and error of runs in one folder; a line that a crash cut off is
    skipped; --overwrite-save begins it anew."""
    run(1, train, f"--train-iters 6 --exit-interval 2 --save {tmp_path} --save-interval 2")
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write('{"event": "warn')
    run(1, train, f"--train-iters 6 --exit-interval 4 --save {tmp_path} --load {tmp_path} --save-interval 2")
    found = read(tmp_path)
    assert [(event["step"], bool(event["resumed_from"])) for event in found.events["start"]] == [(1, False), (3, True)]
    assert [event["step"] for event in found.events["end"]] == [2, 4] and found.unreadable_events == 1
    assert found.predicted["total"] > found.predicted["weights"] > 0
    run(1, fail, f"--train-iters 6 --save {tmp_path} --load {tmp_path} --save-interval 9")
    assert [event["message"] for event in read(tmp_path).events["error"]] == ["RuntimeError: no more"]
    said = [event["message"] for event in read(tmp_path).events["warning"]]
    assert said == ["look out"], said
    run(1, train, f"--train-iters 1 --save {tmp_path} --save-interval 1 --overwrite-save")
    assert [event["step"] for event in read(tmp_path).events["start"]] == [1]
    first = json.loads((tmp_path / "earlier_1" / "events.jsonl").read_text().splitlines()[0])
    assert first["event"] == "start" and first["config"]["training_config"]["training_iters"] == 6


def repeat(backend, flags: str) -> tuple[int, int]:
    """(How many callers still record, how many comparisons were made) at the end of a run that goes back to its first
    step after the third."""
    from pynative.training.callbacks import Callback

    compared = []

    class Repeats(Callback):
        def on_step_end(self, state):
            compared.extend([state.comparison] if state.comparison not in (None, *compared) else [])
            if state.iteration == 3 and not self.has_gone:
                self.has_gone, state.iteration = True, 1

        has_gone = False

    state = pretrain_tiny(backend, f"{BATCHES} {flags}", callbacks=[Repeats()])
    return state.recorder._asking, len(compared)


def test_a_second_step_is_compared_once():
    """A run that makes its second step again, after a rollback, compares it with the plan once, and ends what it
    began."""
    assert run(1, repeat, "--train-iters 5") == [(0, 1)]


def fail(backend, flags: str) -> None:
    """Train with a callback that warns in each step and raises in step 6."""
    from pynative.startup.log import warn
    from pynative.training.callbacks import Callback

    class Fails(Callback):
        def on_gradients(self, state, gradient_scale):
            if state.iteration == 5:
                raise RuntimeError("no more")
            warn("look out")

    with pytest.raises(RuntimeError, match="no more"):
        pretrain_tiny(backend, f"{BATCHES} {flags}", callbacks=[Fails()])


def test_a_script_of_another_model_has_no_prediction(tmp_path):
    """The start event of a model that the configuration does not describe has no predicted memory."""
    run(1, train_another, f"--train-iters 1 --save {tmp_path} --save-interval 1")
    assert read(tmp_path).start["memory_predicted"] is None


def train_another(backend, flags: str) -> None:
    from pynative.transformer.gpt_model import GPTModel
    from tests.support.engine import config_of

    config = config_of(f"{BATCHES} {flags} --ffn-hidden-size 48", backend.world_size)
    pretrain_tiny(
        backend, f"{BATCHES} {flags}", model_provider_func=lambda **stage: GPTModel(config.model_config, **stage)
    )
