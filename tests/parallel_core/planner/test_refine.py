"""`--calibrate-from`: a device file refined by recorded runs; and a device file's table of message times."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from mapping.plan import main
from parallel_core.costs.traffic import step_traffic
from parallel_core.findings import ConfigError
from parallel_core.planner import Plan, find_device
from parallel_core.planner.device import device_file
from parallel_core.planner.recorded import Recorded, mean_seconds, read_run, typical_steps
from parallel_core.planner.refine import refined
from parallel_core.planner.speed import interpolated
from parallel_core.trace import Kind, Span, chrome_json
from tests.support.engine import TINY, config_of

POINTS = [[1e3, 1e-5], [1e6, 1e-3]]
FLAGS = f"{TINY} --num-layers 4 --global-batch-size 8 --tensor-model-parallel-size 2"


def recorded(folder: Path) -> Path:
    """The folder of a recorded run of two ranks: forward 40 ms of which 10 are a message, backward 50 ms, update 4
    ms."""
    spans = []
    for rank in (0, 1):
        spans += [
            Span(rank, Kind.STEP, "step", 0.0, 0.1, 3),
            Span(rank, Kind.FORWARD, "forward 0.0", 0.0, 0.04, 3),
            Span(rank, Kind.MOVING, "all_reduce of world", 0.01, 0.01, 3, "world"),
            Span(rank, Kind.BACKWARD, "backward 0.0", 0.04, 0.05, 3),
            Span(rank, Kind.OPTIMIZER, "optimizer", 0.09, 0.004, 3),
        ]
    (folder / "trace.json").write_text(chrome_json(spans))
    start = {"event": "start", "config": config_of(FLAGS, 2).to_dict()}
    (folder / "events.jsonl").write_text(f"{json.dumps(start)}\n{json.dumps({'event': 'end'})}\n")
    return folder


def test_a_plan_takes_as_long_as_the_run_did(tmp_path):
    """A device refined by a run gives plans whose passes, messages and update take the run's time; it survives being
    written to a file and read."""
    run = read_run(recorded(tmp_path))
    device = replace(find_device("CPU"), messages={"all_reduce": tuple(map(tuple, POINTS))})
    found = refined(device, [run])
    parts = Plan(run.config, found).step.of_stage(0)
    assert parts["forward"] + parts["backward"] == pytest.approx(0.08, rel=1e-3)
    assert parts["optimizer"] == pytest.approx(0.004)
    assert sum(parts[part] for part in GROUPS if part in parts) == pytest.approx(0.01, rel=1e-3)
    both = [Plan(run.config, one).speed for one in (replace(found, calibration=device.calibration), found)]
    sent = next(one for one in step_traffic(Plan(run.config, found).stages[0]) if one.operation == "all_reduce")
    assert both[1].message(sent) >= both[0].message(sent) > 0
    assert found.calibration.ranges.time >= 0.05 and "refined by a run of 2 ranks" in found.calibration.source
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(device_file(found)))
    assert find_device(str(path)) == replace(found, names=found.names)


def test_unusual_steps_count_for_nothing():
    """`typical_steps` leaves out the two shortest and the two longest of eight recorded steps, a step being as long as
    its slowest rank's; `mean_seconds` averages over the others."""
    lengths = {1: (9, 9), 2: (1, 2), 3: (2, 1), 4: (4, 5), 5: (6, 5), 6: (5, 8), 7: (3, 4), 8: (3, 3)}
    steps = {
        (rank, step): [Span(rank, Kind.STEP, "step", 0.0, seconds, step)]
        for step, both in lengths.items()
        for rank, seconds in enumerate(map(float, both))
    }
    config = config_of(FLAGS, 2)
    run, topology = Recorded(config, steps), Plan(config, find_device("CPU")).placement.topology
    assert typical_steps(run) == [8, 7, 4, 5]
    assert [sum(mean_seconds(run, topology)[rank].values()) for rank in (0, 1)] == [4.0, 4.25]


EXPERTS = "--num-experts 4 --expert-model-parallel-size 2 --moe-token-dispatcher-type alltoall"
RECOMPUTE = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
GROUPS = {"tensor parallel": "tp", "expert parallel": "ep", "data parallel": "dp-cp"}


def seen_by(plan: Plan) -> Recorded:
    """A recorded run whose forward, backward, update and messages take the times of a plan, on each rank."""
    steps = {}
    for rank in range(plan.config.parallel_config.world_size):
        parts, at, spans = plan.step.of_stage(0), 0.0, []
        for kind, part in ((Kind.FORWARD, "forward"), (Kind.BACKWARD, "backward"), (Kind.OPTIMIZER, "optimizer")):
            spans.append(Span(rank, kind, part, at, parts[part], 3))
            at += parts[part]
        for part, group in GROUPS.items():
            spans.append(Span(rank, Kind.WAITING, f"all_reduce of {group}", at, parts.get(part, 0.0), 3, group))
            at += parts.get(part, 0.0)
        steps[rank, 3] = [Span(rank, Kind.STEP, "step", 0.0, at, 3), *spans]
    return Recorded(plan.config, steps)


def test_runs_of_several_models_tell_kinds_of_operations_apart():
    """Runs made by plans of a machine with known shares (products, attention, elementwise, ...) refine another device
    so that it predicts two further models, one with experts, on that machine within 1%; the run of one rank gives the
    factor `alone`, messages the waits."""
    assumed = find_device("CPU")
    shares = {"products": 0.6, "attention": 0.2, "elementwise": 0.2, "update": 0.3, "launch": 90e-6, "alone": 1.1}
    shares |= {"uneven": 0.05, "meeting": 0.1, "launch_back": 60e-6, "grouped": 1.3}
    machine = replace(assumed, calibration=replace(assumed.calibration, **shares))
    models = [
        ("--seq-length 256 --hidden-size 256 --ffn-hidden-size 1024 --global-batch-size 4", 2),
        ("--seq-length 2048 --hidden-size 64 --global-batch-size 4", 2),
        ("--seq-length 32 --hidden-size 32 --global-batch-size 8", 2),
        ("--seq-length 128 --hidden-size 32 --vocab-size 30000 --padded-vocab-size 30080 --global-batch-size 4", 2),
        ("--seq-length 256 --hidden-size 256 --ffn-hidden-size 1024 --global-batch-size 4", 1),
        ("--seq-length 256 --hidden-size 128 --global-batch-size 4 --tensor-model-parallel-size 2", 2),
        (f"--seq-length 256 --hidden-size 256 --ffn-hidden-size 1024 --global-batch-size 4 {EXPERTS}", 2),
        (f"--seq-length 256 --hidden-size 128 --global-batch-size 4 {RECOMPUTE}", 2),
    ]
    runs = [
        seen_by(Plan(config_of(f"{TINY} --max-position-embeddings 2048 {flags}", world), machine))
        for flags, world in models
    ]
    found = refined(assumed, runs)
    for key in ("alone", "uneven", "meeting", "launch_back"):
        assert getattr(found.calibration, key) == pytest.approx(shares[key], rel=0.01)
    sizes = f"{TINY} --max-position-embeddings 512 --seq-length 512 --hidden-size 128 --global-batch-size 4"
    for flags in (sizes, f"{sizes} --ffn-hidden-size 1024 {EXPERTS}"):
        parts, wanted = (Plan(config_of(flags, 2), device).step.of_stage(0) for device in (found, machine))
        for part in ("forward", "backward", "optimizer"):
            assert parts[part] == pytest.approx(wanted[part], rel=0.01)


def test_the_command_refines_a_file(tmp_path, capsys):
    """`--calibrate-from RUN FILE` writes FILE, from the run's own device if there is none; a folder that is no run, or
    a missing argument, is an error."""
    path = tmp_path / "cpu.yaml"
    assert main(["--calibrate-from", str(recorded(tmp_path)), str(path)]) == 0
    assert "+- " in capsys.readouterr().out and find_device(str(path)).calibration.update > 0
    (tmp_path / "trace.json").write_text(chrome_json([]))
    for wrong in ([str(tmp_path), str(path)], [str(tmp_path / "none"), str(path)], [str(tmp_path)]):
        assert main(["--calibrate-from", *wrong]) == 2 and "error: --calibrate-from" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("[1]", "line 3 is no JSON object"),
        ("not JSON", "not readable JSON"),
        ('{"event": "start"}', "its last start has no configuration"),
        ('{"event": "start", "config": [1]}', "its last start has no configuration"),
    ],
)
def test_events_of_another_form_are_an_error(line, words, tmp_path, capsys):
    """An event that is no JSON object, or a start without a configuration, is an error of the command that names the
    file and what is wrong."""
    with (recorded(tmp_path) / "events.jsonl").open("a") as file:
        file.write(f"{line}\n")
    assert main(["--calibrate-from", str(tmp_path), str(tmp_path / "cpu.yaml")]) == 2
    error = capsys.readouterr().err
    assert f"{tmp_path / 'events.jsonl'}: {words}" in error and not (tmp_path / "cpu.yaml").exists()


def test_messages_between_the_measured_ones():
    """Times of messages are interpolated between measured sizes; below the smallest they are its time, above the
    largest they follow the rate of the last two."""
    points = [(1e3, 1e-5), (1e5, 1e-4), (1e6, 1e-3)]
    assert interpolated(points, 10) == 1e-5 and interpolated(points, 1e5) == 1e-4
    assert interpolated(points, 550e3) == pytest.approx(5.5e-4) and interpolated(points, 2e6) == pytest.approx(2e-3)
    assert interpolated(points[:1], 2e3) == 2e-5


@pytest.mark.parametrize("stages", [2, 4])
def test_a_message_to_the_next_stage_takes_the_measured_time(stages):
    """Messages between stages on one node take the measured seconds of `send`, however many stages there are."""
    device = replace(find_device("CPU"), messages={"send": tuple(map(tuple, POINTS))})
    plan = Plan(config_of(f"{TINY} --num-layers 4 --pipeline-model-parallel-size {stages}", stages), device)
    sent = [one for one in step_traffic(plan.stages[0]) if one.operation == "send" and one.kind == "pp"]
    assert sent and all(plan.speed.message(one) == one.calls * interpolated(POINTS, one.bytes) for one in sent)


@pytest.mark.parametrize("points", ["[[1, 2], [1, 3]]", "[[2, 1], [1, 1]]", "[[1, 0]]", "[]", "3", "[[1, 2, 3]]"])
def test_messages_of_another_form_are_refused(points, tmp_path):
    """A device file's message table that is not ascending pairs of bytes and seconds is an error with the operation."""
    path = tmp_path / "mine.yaml"
    path.write_text(f"names: [X]\nlike: CPU\nmessages: {{all_reduce: {points}}}\n")
    with pytest.raises(ConfigError, match=r"messages\.all_reduce: must be pairs"):
        find_device(str(path))
