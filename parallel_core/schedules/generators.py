"""The pipeline schedules: functions that give each stage's computations, in order."""

from collections.abc import Sequence
from itertools import chain
from typing import Protocol

from parallel_core.schedules.actions import Backward, Compute, Forward, Ordered, Pair, Placement, WeightGrad
from parallel_core.schedules.automatic import EQUAL, Memory, warm_up, with_weight_gradients
from parallel_core.schedules.dualpipev import DUALPIPE_V, dualpipe_v
from parallel_core.schedules.folded import v_half, v_min, zb_v
from parallel_core.schedules.simulate import Durations, Time


class Generator(Protocol):
    """A function from the sizes of a pipeline to the computations of each stage, in order.

    stages: of the pipeline. micro_batches: of a step. chunks: of a stage. group_size: micro-batches that go through a
    chunk before the next one's turn (interleaved schedules); None: as many as stages.
    """

    def __call__(
        self, stages: int, micro_batches: int, chunks: int = 1, group_size: int | None = None
    ) -> Sequence[Sequence[Ordered]]: ...


class TimedGenerator(Protocol):
    """A `Generator` that orders computations, above all gradients of weights, by times of computations and messages.

    Without `times` it takes forward, gradients of input and gradients of weights for equally long, and messages for
    nothing. `freed` is the part of an activation that its backward frees (`automatic.Memory`).
    """

    def __call__(
        self,
        stages: int,
        micro_batches: int,
        chunks: int = 1,
        group_size: int | None = None,
        times: Durations | None = None,
        freed: Time = 0,
    ) -> list[list[Compute]]: ...


def gpipe(stages: int, micro_batches: int, chunks: int = 1, group_size: int | None = None) -> list[list[Compute]]:
    """GPipe: every forward, then every backward (Huang et al., "GPipe", 2019).

    The backwards run in the micro-batches' order, not in the reverse one of the paper: the bubble is the same, and
    gradients are then summed in the same order as by the other schedules. Raises AssertionError for several chunks.
    group_size: not read.
    """
    assert chunks == 1, f"GPipe has one chunk on a stage, not {chunks}"
    actions: list[Compute] = [Forward(m) for m in range(micro_batches)]
    actions += [Backward(m) for m in range(micro_batches)]
    return [list(actions) for _ in range(stages)]


def one_f_one_b(stages: int, micro_batches: int, chunks: int = 1, group_size: int | None = None) -> list[list[Compute]]:
    """1F1B: one forward, one backward (Narayanan et al., "PipeDream", 2019): Megatron's without virtual stages.

    Stage i of p first runs p-1-i forwards (all, if there are fewer), then alternates, then drains: at most p-i
    micro-batches are in flight on it. Raises AssertionError for several chunks. group_size: not read.
    """
    assert chunks == 1, f"1F1B has one chunk on a stage, not {chunks}: use interleaved"
    forwards = [Forward(m) for m in range(micro_batches)]
    backwards = [Backward(m) for m in range(micro_batches)]
    return [alternate(forwards, backwards, stages - 1 - stage) for stage in range(stages)]


def alternate(forwards: Sequence[Compute], backwards: Sequence[Compute], warm_up: int) -> list[Compute]:
    """`warm_up` forwards, all if there are fewer, then one forward and one backward at a time, then the backwards that
    are left."""
    warm_up = min(warm_up, len(forwards))
    steady = zip(forwards[warm_up:], backwards, strict=False)
    left = backwards[len(forwards) - warm_up :]
    return [*forwards[:warm_up], *chain.from_iterable(steady), *left]


def interleaved(stages: int, micro_batches: int, chunks: int = 1, group_size: int | None = None) -> list[list[Compute]]:
    """Interleaved 1F1B over virtual stages (Narayanan et al., "Efficient Large-Scale Language Model Training", 2021).

    Micro-batches go through the chunks of a stage in groups: a whole group through chunk 0, then through chunk 1, ...,
    then the next group; backwards in the same order with the chunks reversed. A group is as many micro-batches as there
    are stages if not given.

    Stage i of p first runs 2 (p-1-i) + (chunks-1) x group size forwards (Megatron's warm-up), all of them if there are
    no more: so it is on the first stage if the micro-batches are a single group of at most 2 (p-1).
    """
    forwards, backwards, warm_up = _interleaving(stages, micro_batches, chunks, group_size)
    return [alternate(forwards, backwards, before) for before in warm_up]


def _interleaving(
    stages: int, micro_batches: int, chunks: int, group_size: int | None
) -> tuple[list[Forward], list[Backward], list[int]]:
    """Order of forwards, order of backwards (both the same on every stage), and the number of forwards that each stage
    runs first."""
    group_size = group_size or stages
    order = virtual_order(micro_batches, chunks, group_size)
    before = (chunks - 1) * group_size
    return (
        [Forward(m, chunk) for m, chunk in order],
        [Backward(m, chunks - 1 - chunk) for m, chunk in order],
        [2 * (stages - 1 - stage) + before for stage in range(stages)],
    )


def combined_1f1b(
    stages: int, micro_batches: int, chunks: int = 1, group_size: int | None = None
) -> list[list[Ordered]]:
    """Interleaved 1F1B whose forwards run beside backwards (Megatron's combined 1F1B; the idea is DualPipe's,
    DeepSeek-V3, 2024): while the experts' messages of one micro-batch travel, the other computes.

    A pair is a backward of `interleaved` and the forward that would come right after it. So each stage runs one more
    forward before its first backward, if there is one, and keeps at most one more activation.
    """
    forwards, backwards, warm_up = _interleaving(stages, micro_batches, chunks, group_size)
    return [_paired(forwards, backwards, before + 1) for before in warm_up]


def _paired(forwards: Sequence[Forward], backwards: Sequence[Backward], warm_up: int) -> list[Ordered]:
    """`warm_up` forwards, then pairs of a forward and the backward after it, then the backwards that are left."""
    warm_up = min(warm_up, len(forwards))
    steady = map(Pair, forwards[warm_up:], backwards)
    return [*forwards[:warm_up], *steady, *backwards[len(forwards) - warm_up :]]


def virtual_order(micro_batches: int, chunks: int, group_size: int) -> list[tuple[int, int]]:
    """(micro-batch, chunk) in the order in which a stage runs its forwards; the last group may be smaller."""
    return [
        (m, chunk)
        for start in range(0, micro_batches, group_size)
        for chunk in range(chunks)
        for m in range(start, min(start + group_size, micro_batches))
    ]


def zb_h1(stages: int, micro_batches: int, chunks: int = 1, group_size: int | None = None) -> list[list[Compute]]:
    """ZB-H1 (Qi et al., "Zero Bubble Pipeline Parallelism", 2023): weight gradients fill a part of the bubble.

    A `Backward` leaves out gradients of weights, for which no other stage waits. Stage i puts them off: it runs 1F1B
    and, after each backward from that of micro-batch i on, the weight gradients of the micro-batch i before. Those that
    are left at the end follow the last backward.

    An activation is kept until its weight gradient: on stage i of p for p-i micro-batches between forward and backward,
    as in 1F1B, and for i more after that. So no stage keeps more than p, what 1F1B keeps on its first stage. Raises
    AssertionError for several chunks. group_size: not read.
    """
    computes = one_f_one_b(stages, micro_batches, chunks, group_size)
    return [_with_weight_gradients(actions, stage, micro_batches) for stage, actions in enumerate(computes)]


def zb_h2(stages: int, micro_batches: int, chunks: int = 1, group_size: int | None = None) -> list[list[Compute]]:
    """ZB-H2 (Qi et al., 2023) on p stages: at most 2p-1 activations, nearly twice 1F1B's. With 2p-1 micro-batches or
    more, where forward, input gradient and weight gradient are of one length and messages take no time, there is no
    bubble but the time until the last stage's first input is there.

    Stage i runs 2(p-1-i) forwards first (all, if there are fewer), twice as many as in 1F1B, and puts weight gradients
    off by 2i micro-batches. Raises AssertionError for several chunks. group_size: not read.
    """
    lines = _ahead(stages, micro_batches, chunks, [2 * (stages - stage) - 1 for stage in range(stages)])
    return [_with_weight_gradients(line, 2 * stage, micro_batches) for stage, line in enumerate(lines)]


def _ahead(stages: int, micro_batches: int, chunks: int, first: Sequence[int]) -> list[list[Compute]]:
    """1F1B in which stage i runs `first[i]` forwards before its first backward."""
    assert chunks == 1, f"a schedule of one chunk on a stage cannot have {chunks}"
    forwards = [Forward(m) for m in range(micro_batches)]
    backwards = [Backward(m) for m in range(micro_batches)]
    return [alternate(forwards, backwards, first[stage] - 1) for stage in range(stages)]


def zb_1p(
    stages: int,
    micro_batches: int,
    chunks: int = 1,
    group_size: int | None = None,
    times: Durations | None = None,
    freed: Time = 0,
) -> list[list[Compute]]:
    """ZB-1p (Qi et al., 2023, section 3): the order of ZB-H1, gradients of weights placed by times, in the memory of p
    activations on each of p stages, counted as in `automatic.Memory`. times, freed: as in `TimedGenerator`; group_size:
    not read. Raises AssertionError for several chunks."""
    lines = one_f_one_b(stages, micro_batches, chunks, group_size)
    return with_weight_gradients((lines,), Placement(stages), Memory(stages, freed), times or EQUAL)


def zb_2p(
    stages: int,
    micro_batches: int,
    chunks: int = 1,
    group_size: int | None = None,
    times: Durations | None = None,
    freed: Time = 0,
) -> list[list[Compute]]:
    """ZB-2p (Qi et al., 2023, section 3): 1F1B with as many forwards before a stage's first backward as the times ask
    for (`warm_up`; those of ZB-H2 if no times are given), gradients of weights placed by times, in the memory of 2p
    activations on each of p stages, counted as in `automatic.Memory`. times, freed: as in `TimedGenerator`; group_size:
    not read. Raises AssertionError for several chunks."""
    times = times or EQUAL
    first = warm_up(stages, min(2 * stages, micro_batches), times)
    lines = _ahead(stages, micro_batches, chunks, first)
    return with_weight_gradients((lines,), Placement(stages), Memory(2 * stages, freed), times)


def _with_weight_gradients(actions: list[Compute], delay: int, micro_batches: int) -> list[Compute]:
    result: list[Compute] = []
    for action in actions:
        result.append(action)
        if isinstance(action, Backward) and action.micro_batch >= delay:
            result.append(WeightGrad(action.micro_batch - delay))
    return result + [WeightGrad(m) for m in range(max(0, micro_batches - delay), micro_batches)]


def forward_only(
    stages: int, micro_batches: int, chunks: int = 1, group_size: int | None = None
) -> list[list[Compute]]:
    """Evaluation: every micro-batch forward, none backward; with virtual stages group by group, as in `interleaved`."""
    actions: list[Compute] = [
        Forward(m, chunk) for m, chunk in virtual_order(micro_batches, chunks, group_size or stages)
    ]
    return [list(actions) for _ in range(stages)]


COMBINED = "combined-1f1b"

TIMED: dict[str, TimedGenerator] = {
    "zb-1p": zb_1p,
    "zb-2p": zb_2p,
    "zb-v": zb_v,
    "v-half": v_half,
    "v-min": v_min,
}
"""Name of --pipeline-schedule -> generator, of those that take times."""

GENERATORS: dict[str, Generator] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
    "zb-h1": zb_h1,
    "zb-h2": zb_h2,
    **TIMED,
    COMBINED: combined_1f1b,
    DUALPIPE_V: dualpipe_v,
}
"""Name of --pipeline-schedule -> generator."""


def order(
    name: str, placement: Placement, micro_batches: int, group_size: int | None = None, times: Durations | None = None
) -> Sequence[Sequence[Ordered]]:
    """The computations of each stage, in order, by the schedule called `name`. placement: gives the numbers of stages
    and of chunks on each; group_size: as in `Generator`; times: of the stages' computations, which only a
    `TimedGenerator` reads. Raises KeyError for an unknown name, AssertionError as that schedule's generator does."""
    sizes = placement.stages, micro_batches, placement.chunks, group_size
    return TIMED[name](*sizes, times) if times is not None and name in TIMED else GENERATORS[name](*sizes)


SOME_WHOLE = frozenset({DUALPIPE_V})
"""Schedules in which only some backwards leave gradients of weights to a computation of their own."""

SPLIT = frozenset({"zb-h1", "zb-h2", *TIMED}) | SOME_WHOLE
"""Schedules in which gradients of weights are computations of their own."""

FOLDED = frozenset({"zb-v", "v-half", "v-min", DUALPIPE_V})
"""Schedules of a folded pipeline: every other chunk goes through the stages backwards."""

PAIRED = frozenset({COMBINED, DUALPIPE_V})
"""Schedules whose steady state is pairs of a forward and a backward."""

INTERLEAVED = frozenset({"interleaved", COMBINED})
"""Schedules whose micro-batches go through several chunks in groups."""
