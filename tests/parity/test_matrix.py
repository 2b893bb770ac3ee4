"""All ways to split the work over up to 8 ranks give one process's losses, gradients and weights.

Sizes of tensor, pipeline, context and data parallelism are each 1, 2 or 4; every legal combination is a row, with and
without sequence parallelism. Schedules, context-parallel algorithms and models take turns over the rows, so that each
pair of them meets somewhere; `-m exhaustive` runs their full product.
"""

from collections.abc import Iterator
from itertools import cycle, product
from math import prod
from typing import NamedTuple

import pytest

from tests.support.engine import TINY
from tests.support.layouts import check_layout

BASE = f"{TINY} --num-attention-heads 8 --global-batch-size 8 --micro-batch-size 1 --init-method-std 0.1"
MODELS = {
    # A head size of 5 and a feed-forward size of 36: nothing is a power of two. Tied embeddings, dropout on.
    "gpt": "--hidden-size 40 --ffn-hidden-size 36 --hidden-dropout 0.1 --max-position-embeddings 20",
    # 2 key/value groups, fewer than tensor-parallel or Ulysses ranks at most; every token of the batch counts the same.
    "llama": "--hidden-size 32 --ffn-hidden-size 44 --position-embedding-type rope --normalization RMSNorm --swiglu "
    "--disable-bias-linear --group-query-attention --num-query-groups 2 --untie-embeddings-and-output-weights "
    "--qk-layernorm --calculate-per-token-loss",
}
SCHEDULES = {
    "1f1b": "--pipeline-schedule 1f1b",
    "uneven 1f1b": "--num-layer-list {uneven}",
    "gpipe": "--pipeline-schedule gpipe",
    "interleaved": "--virtual-pipeline-model-parallel-size 2",
    "zb-h1": "--pipeline-schedule zb-h1",
}
UNEVEN = {2: "1,2", 4: "1,2,1,1"}
ALGORITHMS = {
    "hybrid": "--context-parallel-algo hybrid_cp_algo --ulysses-degree-in-cp 2",
    "ring": "--context-parallel-algo megatron_cp_algo",
    "ulysses": "--context-parallel-algo ulysses_cp_algo",
}


class Sizes(NamedTuple):
    """Sizes of tensor, pipeline, context and data parallelism."""

    tp: int
    pp: int
    cp: int
    dp: int

    def __str__(self) -> str:
        return " x ".join(f"{name}{size}" for name, size in self._asdict().items() if size > 1)


class Row(NamedTuple):
    """One layout of one model: sizes, sequence parallelism, and names of the pipeline schedule, context-parallel
    algorithm and model."""

    sizes: Sizes
    sequence_parallel: bool
    schedule: str
    algorithm: str
    model: str

    def flags(self) -> str:
        """Command-line flags of the layout: sizes, sequence parallelism, schedule and algorithm, not the model's."""
        tp, pp, cp, _ = self.sizes
        words = [f"--tensor-model-parallel-size {tp} --pipeline-model-parallel-size {pp} --context-parallel-size {cp}"]
        words += ["--sequence-parallel"] * self.sequence_parallel
        words += [SCHEDULES[self.schedule].format(uneven=UNEVEN[pp])] if pp > 1 else []
        words += [ALGORITHMS[self.algorithm]] if cp > 1 else []
        return " ".join(words)

    def layers(self) -> int:
        """The model's number of layers: as few as the schedule allows, and one more than the stages for the uneven
        schedule."""
        stages = self.sizes.pp
        if stages == 1:
            return 2
        return {"uneven 1f1b": stages + 1, "interleaved": 2 * stages}.get(self.schedule, stages)

    def __str__(self) -> str:
        names = ["sp"] * self.sequence_parallel + [self.schedule] * (self.sizes.pp > 1)
        return " ".join([self.model, str(self.sizes), *names, *[self.algorithm] * (self.sizes.cp > 1)])


SIZES = [Sizes(*sizes) for sizes in product((1, 2, 4), repeat=4) if 1 < prod(sizes) <= 8]


def variants(sizes: Sizes) -> tuple[list[bool], list[str], list[str]]:
    """Choices of (sequence parallelism, schedules, context-parallel algorithms) that make sense for these sizes."""
    algorithms = [name for name in ALGORITHMS if name != "hybrid" or sizes.cp == 4]
    sequence = [False, True] if sizes.tp > 1 else [False]
    return sequence, list(SCHEDULES) if sizes.pp > 1 else ["1f1b"], algorithms if sizes.cp > 1 else ["ring"]


def turns() -> Iterator[Row]:
    """A row for every legal combination of sizes, with and without sequence parallelism; schedules, algorithms and
    models take turns over the rows that have the choice."""
    model = cycle(MODELS)
    choices: dict[tuple, tuple] = {}
    for sizes in SIZES:
        sequence, schedules, algorithms = variants(sizes)
        of_kind = choices.setdefault((*schedules, *algorithms), (cycle(schedules), cycle(algorithms)))
        for is_sequence_parallel in sequence:
            schedule, algorithm = map(next, of_kind)
            yield Row(sizes, is_sequence_parallel, schedule, algorithm, next(model))


def everything() -> Iterator[Row]:
    """Rows of every legal combination of sizes, sequence parallelism, schedule, algorithm and model."""
    for sizes in SIZES:
        for sequence, schedule, algorithm in product(*variants(sizes)):
            for model in MODELS:
                yield Row(sizes, sequence, schedule, algorithm, model)


def check(row: Row) -> None:
    check_layout(f"{BASE} {MODELS[row.model]} --num-layers {row.layers()}", prod(row.sizes), row.flags())


@pytest.mark.parametrize("row", sorted(turns(), key=lambda row: prod(row.sizes)), ids=str)
def test_a_combination_equals_one_process(row):
    """Losses of a row to 1e-5, each parameter's gradient to 1e-5 of its largest entry."""
    check(row)


@pytest.mark.exhaustive
@pytest.mark.parametrize("row", sorted(everything(), key=lambda row: prod(row.sizes)), ids=str)
def test_every_combination_equals_one_process(row):
    """The tolerances of `test_a_combination_equals_one_process`, for every schedule, algorithm and model of every
    combination of sizes."""
    check(row)


def test_the_turns_meet():
    """Among the rows of `turns` each schedule runs with context parallelism, and each algorithm in a pipeline."""
    both = [row for row in turns() if row.sizes.pp > 1 and row.sizes.cp > 1]
    assert {row.schedule for row in both} == set(SCHEDULES) and {row.algorithm for row in both} == set(ALGORITHMS)
