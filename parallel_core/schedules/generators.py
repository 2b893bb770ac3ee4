"""The schedules by the names that `--pipeline-schedule` takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from parallel_core.schedules.actions import Compute
from parallel_core.schedules.gpipe import gpipe
from parallel_core.schedules.interleaved import interleaved
from parallel_core.schedules.one_f_one_b import one_f_one_b
from parallel_core.schedules.zero_bubble import zb_h1

if TYPE_CHECKING:
    from parallel_core.config.parallel import ParallelConfig


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


def schedule_name(parallel_config: ParallelConfig) -> str:
    """The schedule that was asked for; if none was, interleaved with virtual stages and 1F1B without."""
    if parallel_config.pipeline_schedule is not None:
        return parallel_config.pipeline_schedule
    return "interleaved" if (parallel_config.virtual_pipeline_model_parallel_size or 1) > 1 else "1f1b"
