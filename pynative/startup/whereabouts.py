"""The work that this rank is at, read off the stack frames of the thread that computes, when somebody asks."""

import itertools
import os
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from mindspore import Parameter, nn

from parallel_core.schedules.actions import Backward, Forward, WeightGrad
from parallel_core.whereabouts import Whereabouts, table
from pynative.collectives import Backend
from pynative.startup.log import warn
from pynative.step_position import get_step_position
from pynative.tape.turns import running_thread

_PACKAGE = Path(__file__).resolve().parents[1]
_KERNELS, _TRAINING = (str(_PACKAGE / name) + os.sep for name in ("kernels", "training"))
_CALLERS = {"step", "_attempt", "_train", "train", "pretrain"}
"""Names of functions of `training`: what they call is the part of a step that is reported."""
_ACTIONS = {Forward: "forward", Backward: "backward", WeightGrad: "weight gradients"}
_DEPTH = 3
_FRAMES = 20
"""The number of innermost stack frames that a report has."""


def watch(backend: Backend) -> None:
    """Have this rank answer roll calls from now on: it writes its whereabouts to its error stream. A roll call begins
    by SIGUSR2 to a rank, on CPUs also when a rank has waited in a collective for the whole time-out. On CPUs all ranks
    are asked, and rank 0 of several logs a table of the answers; with HCCL the rank with the signal answers alone."""
    backend.roll_call.start(lambda: whereabouts(backend), _show)


def _show(found: Sequence[Whereabouts], world_size: int) -> None:
    warn("Where the ranks stand:\n" + "\n".join(table(found, world_size)))


def whereabouts(backend: Backend) -> Whereabouts:
    """The step position, part of the step, action, layer, operator and innermost stack frames of the main thread (while
    two computations take turns, of the thread whose turn it is), and the rank's waits."""
    position = get_step_position()
    waits, standing = backend.standing()
    innermost = sys._current_frames().get(running_thread() or threading.main_thread().ident or 0)
    frames = list(outwards(innermost))
    stack = traceback.format_stack(innermost)[-_FRAMES:] if innermost is not None else []
    return Whereabouts(
        backend.rank,
        position.iteration + 1,
        position.micro_batch,
        position.chunk,
        part=_part(frames),
        action=_action(frames),
        layer=layer_of(frames),
        operator=_operator(frames),
        waits=waits,
        standing=standing,
        stack=tuple(stack),
    )


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame, then its callers, outwards."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _action(frames: Sequence[FrameType]) -> str:
    """The pipeline action under way, as "forward 3.0" (micro-batch.chunk); "" outside of one. frames: innermost
    first."""
    for frame in frames:
        action = frame.f_locals.get("action")
        if isinstance(action, Forward | Backward | WeightGrad):
            return f"{_ACTIONS[type(action)]} {action.micro_batch}.{action.chunk}"
    return ""


def _operator(frames: Sequence[FrameType]) -> str:
    """The name of the outermost function of `kernels` that runs; "" if none does."""
    names = [frame.f_code.co_name for frame in frames if frame.f_code.co_filename.startswith(_KERNELS)]
    return names[-1] if names else ""


def _part(frames: Sequence[FrameType]) -> str:
    """The functions under way below the training loop or step, as "outer > inner", at most three of them; ""
    outside."""
    for place, frame in enumerate(frames):
        if place and frame.f_code.co_name in _CALLERS and frame.f_code.co_filename.startswith(_TRAINING):
            inside = frames[max(0, place - _DEPTH) : place]
            return " > ".join(inner.f_code.co_name for inner in reversed(inside))
    return ""


def layer_of(frames: Sequence[FrameType]) -> str:
    """The global name that the innermost frame with one gives: of the cell that is its variable `self`, or else of the
    parameter that is its `weight`, `parameter` or `gamma`; "" if no frame gives one. frames: innermost first."""
    for frame in frames:
        for value in _cell_or_parameter(frame):
            if name := name_of(value):
                return name
    return ""


def _cell_or_parameter(frame: FrameType) -> Iterator[Any]:
    found = frame.f_locals
    if isinstance(found.get("self"), nn.Cell):
        yield found["self"]
    for name in ("weight", "parameter", "gamma"):
        if isinstance(found.get(name), Parameter):
            yield found[name]


def name_of(value: Any) -> str:
    """The global name of a parameter, or of a cell: the first words, such as "decoder.layers.0", that the names of all
    its parameters share, the last word of each name left out; "" if there is none."""
    if isinstance(value, Parameter):
        meta = getattr(value, "meta", None)
        return meta.spec.name if meta is not None else ""
    names = [p.meta.spec.name.split(".")[:-1] for p in value.get_parameters() if hasattr(p, "meta")]
    shared = itertools.takewhile(lambda words: len(set(words)) == 1, zip(*names, strict=False))
    return ".".join(words[0] for words in shared)
