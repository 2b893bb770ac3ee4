"""`plan --suggest`, failures, pictures and the subjects of the `plan` command."""

from __future__ import annotations

import json
import math
import re
import shlex
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from xml.etree import ElementTree

import pytest

from mapping.plan import main, plan_of
from mapping.suggest import suggest, whole_model
from parallel_core.findings import ConfigError
from parallel_core.planner import Plan, find_device
from parallel_core.planner.failures import best_interval, goodput
from parallel_core.planner.layouts import all_layouts, layout_of, neighbours, without_layout
from parallel_core.planner.pictures import _steps, memory_svg, ranks_svg
from parallel_core.planner.report import draw, spans, step_svg
from parallel_core.planner.search import Bound, search
from parallel_core.planner.speed import Placement
from parallel_core.topology import Topology

pytestmark = pytest.mark.slow

SMALL = shlex.split(
    "--num-layers 4 --hidden-size 1024 --num-attention-heads 8 --seq-length 1024 --max-position-embeddings 1024 "
    "--tokenizer-type NullTokenizer --vocab-size 31999 --mock-data --micro-batch-size 1 --global-batch-size 16 "
    "--tensor-model-parallel-size 2 --sequence-parallel --train-iters 5 --lr 1e-4 --bf16"
)


EXPERTS = ["--num-experts", "4", "--moe-router-topk", "2"]


@cache
def planned(words: tuple[str, ...], world: int) -> Plan:
    """The plan of these words on A100, cached: it is tried with several sizes of memory."""
    return plan_of(words, world, "A100")


@pytest.mark.parametrize(("more", "world", "memory"), [([], 4, 80e9), ([], 4, 3.2e9), (EXPERTS, 2, 6e9)])
def test_the_search_finds_what_trying_all_finds(more, world, memory):
    """`suggest` gives the five fastest layouts and the best single changes that planning every layout gives; the
    search's bounds are never above a layout's time, nor refuse one that fits."""
    device = replace(find_device("A100"), memory_bytes=memory)
    words = [*SMALL, *more]
    plan = replace(plan_of(words, world, "A100"), device=device)
    layouts, base = [*all_layouts(plan.config, world)], without_layout(words)
    found, bound, times = suggest(words, plan), Bound(plan, partial(whole_model, base, plan)), {}
    for layout in layouts:
        try:
            made = replace(planned((*base, *layout.flags()), world), device=device)
        except ConfigError:
            continue
        if made.fits:
            times[layout] = made.step.total
            assert bound.fits(layout), layout
        assert bound.seconds(layout) <= made.step.total * (1 + 1e-9), layout

    def fastest(some: list, count: int) -> list[float]:
        best: dict = {}
        for layout in some:
            best[layout.bare] = min(best.get(layout.bare, math.inf), times[layout])
        return sorted(best.values())[:count]

    assert [one.seconds for one in found.layouts] == pytest.approx(fastest([*times], 5)) and len(layouts) > 100
    own = layout_of(plan.config)
    changes = fastest([one for one in neighbours(own, layouts) if one in times], 3)
    better = [seconds for seconds in changes if seconds < plan.step.total or not plan.fits]
    assert [one.seconds for one in found.changes] == pytest.approx(better)


def test_a_search_for_none_plans_none():
    """`search` for no layouts returns none, without a plan."""
    plan = planned((*SMALL,), 4)
    bound = Bound(plan, partial(whole_model, without_layout(SMALL), plan))
    assert search([*all_layouts(plan.config, 4)], bound, lambda layout: pytest.fail(f"{layout} was planned"), 0) == []


def test_a_layouts_flags_replace_the_scripts():
    """`without_layout` removes the flags of a layout and of recompute with their values, whether `=` or spaces divide
    them."""
    words = [
        "--lr",
        "1",
        "--tensor-model-parallel-size=2",
        "--sequence-parallel",
        "--recompute-modules",
        "a",
        "b",
        "--bf16",
    ]
    assert without_layout(words) == ["--lr", "1", "--bf16"]


def test_the_best_interval_between_checkpoints():
    """`best_interval` has a goodput that half, 0.8, 1.25 and twice the interval do not exceed; rarer failures give a
    higher one."""
    for between in (3600.0, 86400.0):
        best = best_interval(between, 60)
        of_best = goodput(between, 60, 300, best)
        assert all(goodput(between, 60, 300, best * factor) < of_best + 1e-4 for factor in (0.5, 0.8, 1.25, 2))
    assert goodput(3600, 60, 300, best_interval(3600, 60)) < goodput(86400, 60, 300, best_interval(86400, 60)) < 1
    assert goodput(1, 60, 300, best_interval(1, 60)) < 1e-9
    assert goodput(1e12, 1e-6, 0, 1e-5) == pytest.approx(1 / 1.1)


@pytest.fixture(scope="module")
def pipelined() -> Plan:
    """A plan with four pipeline stages on 8 ranks."""
    return plan_of([*SMALL, "--pipeline-model-parallel-size", "4"], 8, "A100")


def test_a_step_is_drawn(pipelined: Plan, tmp_path: Path):
    """--draw writes the step as SVG with all stages, or as a trace (.json) in which all stages end with the update at
    the same time."""
    draw(pipelined, tmp_path / "step.svg")
    picture = (tmp_path / "step.svg").read_text()
    assert picture.startswith("<svg") and "stage 3" in picture
    draw(pipelined, tmp_path / "step.json")
    events = [event for event in json.loads((tmp_path / "step.json").read_text())["traceEvents"] if event["ph"] == "X"]
    assert {event["pid"] for event in events} == {0, 2, 4, 6}
    ends = {event["pid"]: event["ts"] + event["dur"] for event in events if event["cat"] == "optimizer"}
    assert len({round(end, 1) for end in ends.values()}) == 1


def test_a_steps_trace_is_of_the_first_rank_of_each_stage():
    """A step's trace has the first rank of each stage also where --use-tp-pp-dp-mapping puts stages before replicas."""
    flags = ["--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size", "2", "--use-tp-pp-dp-mapping"]
    assert {span.rank for span in spans(plan_of([*SMALL, *flags], 8, "A100"))} == {0, 2}


def test_memory_over_the_step_is_drawn(pipelined: Plan):
    """--draw-memory has a line for each stage with the plan's peak; memory rises and falls over the step."""
    picture = memory_svg(pipelined)
    peaks = [float(one) for one in re.findall(r"stage \d: ([\d.]+) GiB", picture)]
    assert peaks == [round(stage.total / 2**30, 1) for stage in pipelined.memory] and picture.count("<polyline") == 4
    steps = [[*_steps(pipelined, stage)] for stage in range(4)]
    assert all(start < stop for one in steps for start, stop, _ in one)
    assert min(size for *_, size in steps[0]) < max(size for *_, size in steps[0]) == pipelined.memory[0].total


def test_a_devices_name_is_drawn_as_it_is(pipelined: Plan):
    """A device's name with characters that SVG reserves stands in the pictures as it is."""
    plan = replace(pipelined, device=replace(pipelined.device, names=("A & <B>",)))
    for picture in (step_svg(plan), memory_svg(plan)):
        assert any("A & <B>" in (text.text or "") for text in ElementTree.fromstring(picture))


def test_ranks_are_drawn_on_their_nodes(pipelined: Plan):
    """--draw-ranks shows each rank once with its coordinates; of a large job the first 64 nodes, and the number of the
    others."""
    picture = ranks_svg(pipelined)
    assert [int(rank) for rank in re.findall(r"<title>rank (\d+):", picture)] == [*range(8)]
    assert "rank 7: tp 1, pp 3" in picture
    large = ranks_svg(plan_of([*SMALL, "--global-batch-size", "51200"], 102400, "A100"))
    assert "12736 more nodes" in large and large.count("<title>") == 64 * 8


def test_the_options_of_the_command(capsys, tmp_path):
    """--suggest, --mtbf-hours and the pictures work together, with JSON; values that make no sense are refused."""
    options = ["--world-size", "4", "--device", "A100", "--json", "--suggest", "--mtbf-hours", "40000"]
    pictures = {flag: tmp_path / f"{flag}.svg" for flag in ("--draw", "--draw-memory", "--draw-ranks")}
    drawn = [word for flag, path in pictures.items() for word in (flag, str(path))]
    assert main([*options, *drawn, "--", *SMALL]) == 0 and all(path.exists() for path in pictures.values())
    found = json.loads(capsys.readouterr().out)
    assert len(found["layouts"]) == 5 and found["layouts"][0]["fits"]
    assert found["reliability"]["mean_hours_between_failures"] == pytest.approx(10000)
    for wrong in (["--mtbf-hours", "0"], ["--draw", "a.gif"], ["--draw-ranks", "a.json"], ["--world-size", "0"]):
        with pytest.raises(SystemExit):
            main([*wrong, "--", *SMALL])


def test_a_hundred_thousand_ranks():
    """A plan of 102,400 ranks fits and has times; one group of replicas is looked up without listing all."""
    flags = [*SMALL, "--pipeline-model-parallel-size", "4", "--global-batch-size", "51200"]
    plan = plan_of(flags, 102400, "H100")
    assert plan.fits and plan.step.total > 0
    assert plan.placement.group("dp-cp") == (12800, 4)


def test_a_single_stage_is_alone_on_its_node():
    """A pipeline of one stage is a group of one rank, of which one is on a node, whether or not the node has room for
    more; of two stages two share a node."""
    assert (
        Placement(Topology(world_size=4), 8).group("pp") == Placement(Topology(world_size=8), 8).group("pp") == (1, 1)
    )
    assert Placement(Topology(world_size=8, pipeline_model_parallel_size=2), 8).group("pp") == (2, 2)


def test_groups_and_schedules_are_subjects_of_the_same_command(capsys):
    """`plan groups` and `plan schedule` print process groups and a schedule; behind `--` a script's sizes are read and
    its other flags passed over, before it a foreign flag is an error."""
    assert main(["groups", "--world-size", "8", "--rank", "5", "--json", "--", *SMALL]) == 0
    groups = json.loads(capsys.readouterr().out)
    assert groups["tp"] == [4, 5] and groups["dp"] == [1, 3, 5, 7]
    assert main(["schedule", "--schedule", "1f1b", "--stages", "2", "--micro-batches", "4"]) == 0
    assert "stage 1" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["groups", "--world-size", "8", "--bf16"])
