"""The schedules by the names that `--pipeline-schedule` takes."""

from __future__ import annotations

from typing import Protocol

from parallel_core.schedules.actions import Compute
from parallel_core.schedules.gpipe import gpipe
from parallel_core.schedules.interleaved import interleaved
from parallel_core.schedules.one_f_one_b import one_f_one_b
from parallel_core.schedules.zero_bubble import zb_h1


class Generator(Protocol):
    """What each stage computes, in order."""

    def __call__(
        self, stages: int, micro_batches: int, chunks: int = 1, group_size: int | None = None
    ) -> list[list[Compute]]: ...


GENERATORS: dict[str, Generator] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
    "zb-h1": zb_h1,
}
