"""The events of a run as plain values, for `events.jsonl`: start, warnings, tokens of experts, comparison with the
plan, end or error."""

import sys
from datetime import datetime, timezone
from typing import Any

from parallel_core.planner.beside import predicted_bytes
from parallel_core.step_figures import tokens_by_expert
from parallel_core.system.environment import described
from pynative import parallel_state
from pynative.training.callbacks.base import TrainingState
from pynative.training.planned import is_planned

Event = dict[str, Any]


def event(kind: str, step: int, **more: Any) -> Event:
    """An event with the time now (UTC, ISO 8601, in seconds). kind: start, warning, experts, comparison, end or error.
    step: the number of the step to which it belongs. more: the event's own keys."""
    return {"event": kind, "time": datetime.now(timezone.utc).isoformat(timespec="seconds"), "step": step, **more}


def start_event(state: TrainingState) -> Event:
    """The start of a run: command, flags and configuration, and where it runs. `step` is the one to be made first.
    `memory_predicted`: bytes of this rank by part, and their sum as "total"; None for a model with other parameters
    than the plan's."""
    config, stage = state.config, parallel_state.get_pipeline_model_parallel_rank()
    needed = predicted_bytes(state.plan, stage) if is_planned(state.plan, state.model) else None
    return event(
        "start",
        state.iteration + 1,
        run_id=state.run_id,
        resumed_from=None if state.resumed_from is None else str(state.resumed_from),
        command=sys.argv,
        flags=config.outcomes,
        config=config.to_dict(),
        environment=described(),
        memory_predicted=None if needed is None else {**needed, "total": sum(needed.values())},
    )


SPACING = 1000
"""Steps between two events of experts; a model of many experts in many layers has a line of some 100 kB."""


def experts_event(state: TrainingState) -> Event | None:
    """The numbers of tokens that chose each expert in this step, by layer (from 0), at steps that are powers of two or
    multiples of SPACING (1000), and at step --train-iters; None at other steps, and for a model without experts."""
    step, last = state.iteration, state.config.training_config.training_iters
    is_due = step % SPACING == 0 or step & (step - 1) == 0 or step == last
    tokens = tokens_by_expert(state.result.figures) if is_due else {}
    return event("experts", step, tokens=tokens) if tokens else None


def comparison_event(state: TrainingState) -> Event | None:
    """The comparison of a step with the plan, seconds and bytes of this rank by part; None unless the number of the
    step that was compared is that of the last step."""
    found = state.comparison
    if found is None or found.step != state.iteration:
        return None
    named = {"seconds": found.seconds, "memory": found.memory}
    parts = {
        name: {"error": quantity.error, "parts": {row.part: row[1:] for row in quantity.rows}}
        for name, quantity in named.items()
    }
    return event("comparison", found.step, device=found.device, source=found.source, **parts)


def last_event(step: int, has_ended: bool) -> Event | None:
    """The event that ends a run: "error" if an exception is being handled, else "end" if the run has come to its end
    (`has_ended`), else None."""
    error = sys.exc_info()[1]
    if error is None:
        return event("end", step) if has_ended else None
    return event("error", step, message=f"{type(error).__name__}: {error}")
