"""Folders of runs as the report reads them, written without a run."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from parallel_core.trace import Kind, Span, chrome_json, planned_json

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
CURVES = {
    "loss": [5.0, 4.0, 3.5, 3.25],
    "grad_norm": [2.0, 1.5, 1.0, 0.5],
    "learning_rate": [1e-3, 2e-3, 2e-3, 1e-3],
    "loss_scale": [65536.0, 32768.0, 32768.0, 32768.0],
    "tokens_per_second": [900.0, 1000.0, 1100.0, 1050.0],
    "mfu": [0.4, 0.41, 0.42, 0.41],
    "tflops": [100.0, 101.0, 102.0, 101.0],
    "milliseconds": [20.0, 19.0, 18.0, 18.5],
    "memory_mb": [300.0, 310.0, 310.0, 310.0],
    "load_balancing_loss": [1.4, 1.3, 1.2, 1.1],
}
SPANS = [
    Span(0, Kind.STEP, "step 2", 0.0, 10.0, 2),
    Span(0, Kind.FORWARD, "forward 0.0", 1.0, 3.0, 2),
    Span(0, Kind.WAITING, "backward-recv", 4.0, 2.0, 2, "pp"),
    Span(0, Kind.BACKWARD, "backward 0.0", 6.0, 4.0, 2),
]
PLANNED = [Span(0, Kind.FORWARD, "forward 0.0", 0.0, 3.0), Span(0, Kind.BACKWARD, "backward 0.0", 3.0, 4.0)]


def write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)


def metrics(count: int = 4, **more: Any) -> list[dict[str, Any]]:
    """Lines of metrics.jsonl of `count` steps from 1, with `more` in each."""
    return [
        {"step": step + 1, "consumed_samples": 8 * (step + 1), "skipped": False, **more}
        | {name: values[step % len(values)] for name, values in CURVES.items()}
        for step in range(count)
    ]


def start(**more: Any) -> dict[str, Any]:
    """The start event of a run, with `more` in place of its fields."""
    flag = {
        "flag": "--lr",
        "value": 0.001,
        "status": "mapped",
        "target": "optimizer_config.learning_rate",
        "reason": "",
    }
    return {
        "event": "start",
        "time": "2026-01-02T03:04:05+00:00",
        "step": 1,
        "run_id": "a",
        "resumed_from": None,
        "flags": [flag],
        "config": {"training_config": {"training_iters": 4}, "model_config": {"moe_config": {"num_experts": 4}}},
        "environment": {"python": "3.11"},
        "memory_predicted": {"weights": 2**20, "total": 4 * 2**20},
    } | more


def write_run(folder: Path, **more: Any) -> Path:
    """Write metrics, events and a trace of a run with experts, evaluation and comparison; more: fields of its start
    event. Returns the folder."""
    lines = metrics(expert_load={"0": 1.5, "2": 1.25})
    lines[3]["validation_loss"] = 3.75
    write_lines(folder / "metrics.jsonl", lines)
    experts = {"event": "experts", "step": 4, "tokens": {"0": [1, 2, 3, 2], "2": [2, 2, 2, 2]}}
    parts = {"forward": [0.5, 1.0], "backward": [1.5, 1.0]}
    memory = {"error": 0.1, "parts": {"weights": [2**20, 2**20], "activations": [2**20, None]}}
    compared = {"event": "comparison", "step": 2, "device": "CPU", "source": "a test", "memory": memory}
    compared["seconds"] = {"error": 0.5, "parts": parts}
    warning = {"event": "warning", "time": "2026-01-02T03:04:06+00:00", "step": 2, "message": "the disk is full"}
    write_lines(folder / "events.jsonl", [start(**more), experts, warning, compared, {"event": "end", "step": 4}])
    planned = {"bubble_share": 0.0, "spans": planned_json(PLANNED)}
    (folder / "trace.json").write_text(chrome_json(SPANS, planned=planned))
    return folder
