"""Seconds of a training step by named parts: computation, exposed and hidden messages, the bubble, the update."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial

from parallel_core.costs import StagePlan, update_bytes
from parallel_core.costs.activations import enough_micro_batches
from parallel_core.costs.traffic import gradients, hot_copies, pipeline, reports
from parallel_core.planner.passes import DATA, EXPERTS, PIPELINE, TENSOR, Passes, passes_of_stage
from parallel_core.planner.prediction import Prediction
from parallel_core.planner.speed import ALL_MESSAGES, Speed
from parallel_core.schedules import Backward, Forward, Pair, Placement, order
from parallel_core.schedules.actions import Compute, Ordered
from parallel_core.schedules.shared import Cores, simulate_shared
from parallel_core.schedules.simulate import Timeline, simulate

SETTLES = 3
"""Groups of micro-batches after which waits of stages that share cores repeat: how fast a stage is depends on the
others' waits, and its own on those."""

Entries = Sequence[Sequence[Ordered]]
"""Computations of each stage, in order."""


@dataclass(frozen=True)
class StageTimes:
    """The `Durations` of `schedules.simulate`: `passes` [stage][chunk] and the seconds of a message to another stage
    (`transfer`). micro_batches: their number in a step; takes_turns: whether in a pair each half computes while the
    other's expert messages travel; cores: those that stages share."""

    passes: Sequence[Sequence[Passes]]
    """[stage][chunk]: the passes of one micro-batch."""
    transfer: float
    """Seconds of the longest message from one stage to the next."""
    micro_batches: int
    takes_turns: bool = False
    """Whether in a pair of forward and backward each computes while the other's expert messages travel."""
    cores: Cores | None = None
    """The cores that stages share; None: each has its own processor."""

    def of(self, action: Compute, stage: int, chunks: int, split: bool) -> float:
        """Seconds of `action` on a stage; a backward with `split` leaves gradients of weights to another action.
        chunks: ignored."""
        forward, backward, weight = self.passes[stage][action.chunk].totals
        if isinstance(action, Forward):
            return forward
        if isinstance(action, Backward):
            return backward + (0.0 if split else weight)
        return weight

    def saved(self, pair: Pair, stage: int, chunks: int) -> float:
        """Seconds by which a pair is shorter than its forward and its backward one after the other: each half's expert
        messages, as far as the rest of the other half lasts. 0 unless `takes_turns`. chunks: ignored."""
        if not self.takes_turns:
            return 0.0
        one, other = (self.passes[stage][action.chunk] for action in pair)
        there, back = one.forward.get(EXPERTS, 0.0), other.backward.get(EXPERTS, 0.0)
        forward, (_, inputs, weight) = one.totals[0], other.totals
        return min(there, inputs + weight - back) + min(back, forward - there)

    def saved_in_step(self, entries: Sequence[Sequence[Ordered]]) -> list[float]:
        """Seconds that pairs (see `saved`) save on each stage in a whole step, at the stage's own speed. entries: of a
        step with few micro-batches; each further forward of the whole step counts as one more pair, which saves the
        average of the stage's pairs; 0 for a stage without pairs."""
        return [self._saved_by(own, stage) for stage, own in enumerate(entries)]

    def _saved_by(self, entries: Sequence[Ordered], stage: int) -> float:
        chunks = len(self.passes[stage])
        found = [self.saved(entry, stage, chunks) for entry in entries if isinstance(entry, Pair)]
        forwards = sum(isinstance(entry, Forward) for entry in entries) + len(found)
        further = chunks * self.micro_batches - forwards
        return sum(found) + (further * sum(found) / len(found) if found else 0.0)


@dataclass(frozen=True)
class StepTime(Prediction):
    """Seconds of one training step by part, of messages only those that no computation hides (`hidden`: the hidden
    ones, without the pipeline's). work, saved, stretch: of each stage, the seconds of its work, those that pairs save
    (taken off `work`), and the factor for shared cores that both contain; slowest: the stage with the most work."""

    hidden: dict[str, float]
    """Part -> seconds of messages that are overlapped with computation, in none of `parts`."""
    flops_per_device: float
    """Floating-point operations of a device's passes in a step, recomputed ones included, averaged over the stages."""
    slowest: int
    """The stage with the most work, for which the others wait."""
    work: tuple[float, ...]
    """Seconds that each stage computes or sends within its micro-batches' passes."""
    saved: tuple[float, ...]
    """Seconds by which pairs shorten each stage's work, already taken off `work`."""
    stretch: tuple[float, ...]
    """Seconds that each stage takes for one second of work at its own speed, because it shares cores with others, and
    is slower after it has waited."""
    timeline: Timeline = field(repr=False)
    """The simulated timeline of a step with few micro-batches, in seconds."""
    times: StageTimes = field(repr=False)

    def of_stage(self, stage: int) -> dict[str, float]:
        """Name -> seconds of one stage in a step: "forward", "backward", exposed messages by kind, and "bubble", in
        which it waits for other stages and their messages; "optimizer", and what of "data parallel" comes behind the
        passes, are those of the stage where these two together take longest. All together are `total`."""
        found = self._of_passes(stage)
        behind = self.parts[DATA] - self._of_passes(self.slowest).get(DATA, 0.0)
        found["bubble"] = max(self.work) + self.parts["bubble"] + self.parts[PIPELINE] - self.work[stage]
        return {**found, DATA: found.get(DATA, 0.0) + behind, "optimizer": self.parts["optimizer"]}

    def _of_passes(self, stage: int) -> dict[str, float]:
        found = {"forward": 0.0, "backward": 0.0}
        for one in self.times.passes[stage]:
            for name, table in (("forward", one.forward), ("backward", one.backward), ("backward", one.weight)):
                for part, seconds in table.items():
                    key = part if part in ALL_MESSAGES else name
                    found[key] = found.get(key, 0.0) + self.stretch[stage] * self.times.micro_batches * seconds
        if self.saved[stage]:
            found[EXPERTS] -= self.saved[stage]
        return found

    @property
    def bubble_fraction(self) -> float:
        """The part of the pipeline's time (without the update and data parallelism's messages behind the passes) in
        which its slowest stage waits for others' computation, not for messages alone."""
        whole = max(self.work) + self.parts["bubble"] + self.parts[PIPELINE]
        return self.parts["bubble"] / whole if whole else 0.0


def step_time(plans: Sequence[StagePlan], speed: Speed) -> StepTime:
    """The time of a step of a pipeline. plans: of its stages, in order; the passes of those that are the same object
    are computed once."""
    config, distinct = plans[0].config, {id(plan): plan for plan in plans}
    made = {number: passes_of_stage(plan, speed) for number, plan in distinct.items()}
    passes = [made[id(plan)] for plan in plans]
    micro_batches = config.dataset_config.micro_batch_num
    transfer = _transfer(plans[0], speed)
    times = StageTimes(
        passes, transfer, micro_batches, config.takes_turns and speed.hides, speed if speed.device.cores else None
    )
    entries_of = cache(partial(_entries, plans[0], times))
    saved = times.saved_in_step(entries_of(enough_micro_batches(config)))
    timeline, length, took = _length(plans[0], times, entries_of)
    apart = [micro_batches * sum(sum(one.totals) for one in row) for row in passes]
    stretch = _stretch(times, took, [seconds - less for seconds, less in zip(apart, saved, strict=True)])
    saved = [seconds * longer for seconds, longer in zip(saved, stretch, strict=True)]
    work = [seconds * longer - less for seconds, longer, less in zip(apart, stretch, saved, strict=True)]
    slowest = max(range(len(work)), key=work.__getitem__)
    without = _length(plans[0], replace(times, transfer=0.0), entries_of)[1] if transfer else length
    parts: Counter[str] = Counter()
    for one in passes[slowest]:
        parts.update({name: stretch[slowest] * micro_batches * seconds for name, seconds in one.parts.items()})
    after, hidden = _after(plans, passes, speed)
    hidden[TENSOR] = micro_batches * sum(one.hidden[TENSOR] for one in passes[slowest])
    waits = max(without, work[slowest])  # cores that wait for messages, too, are slower at first
    parts.update({"bubble": waits - work[slowest], PIPELINE: max(0.0, length - waits)})
    parts.update(after)
    found: dict[str, float] = dict(parts)
    if saved[slowest]:
        found[EXPERTS] -= saved[slowest]
        hidden[EXPERTS] = saved[slowest]
    flops = micro_batches * sum(one.flops for row in passes for one in row) / len(plans)
    error = speed.device.calibration.ranges.time
    of_stages = tuple(work), tuple(saved), tuple(stretch)
    return StepTime(found, error, hidden, flops, slowest, *of_stages, timeline, times)


def _transfer(plan: StagePlan, speed: Speed) -> float:
    """Seconds of the longest message from one stage to the next."""
    sent = [speed.message(one) / one.calls for one in pipeline(plan) if one.calls]
    return max(sent, default=0.0)


def _entries(plan: StagePlan, times: StageTimes, micro_batches: int) -> Entries:
    """The computations of each stage for `micro_batches` micro-batches in the order in which a run computes them: by
    `times` if the run names a device (--plan-device)."""
    parallel, named = plan.config.parallel_config, plan.config.training_config.log.plan_device
    group_size = parallel.microbatch_group_size_per_virtual_pipeline_stage
    known = times if named else None
    return order(parallel.schedule_name, parallel.placement, micro_batches, group_size, known)


def _timeline(entries: Entries, times: StageTimes, placement: Placement) -> Timeline:
    if times.cores is None:
        return simulate(entries, times, placement)
    return simulate_shared(entries, times, placement, times.cores)


def _stretch(times: StageTimes, took: Sequence[float], alone: Sequence[float]) -> list[float]:
    """For each stage, the seconds that its work took on a timeline divided by those at its own speed (`alone`); beside
    idle cores it may be below 1. 1 where stages share no cores, and for a stage without work."""
    if times.cores is None:
        return [1.0] * len(took)
    return [seconds / own if own else 1.0 for seconds, own in zip(took, alone, strict=True)]


def _length(
    plan: StagePlan, times: StageTimes, entries_of: Callable[[int], Entries]
) -> tuple[Timeline, float, list[float]]:
    """A timeline of as many micro-batches as show warm-up, steady state and drain; the seconds of all micro-batches,
    and of each stage's work in them: each further group of them adds as much as the last one did. In 1F1B stages that
    are waited for expose messages in the steady state, too.

    entries_of: a function from a number of micro-batches to the computations of each stage.
    """
    parallel, few = plan.config.parallel_config, enough_micro_batches(plan.config)
    placement = parallel.placement
    group = parallel.microbatch_group_size_per_virtual_pipeline_stage or parallel.pipeline_model_parallel_size
    if times.cores is not None:
        few += min(SETTLES * group, times.micro_batches - few)
    timeline, more = _timeline(entries_of(few), times, placement), times.micro_batches - few
    known = [float(timeline.length), *map(float, timeline.work)]
    if more:
        before = _timeline(entries_of(few - group), times, placement)
        fewer = [float(before.length), *map(float, before.work)]
        known = [seconds + more / group * (seconds - less) for seconds, less in zip(known, fewer, strict=True)]
    return timeline, known[0], known[1:]


def _after(
    plans: Sequence[StagePlan], passes: Sequence[Sequence[Passes]], speed: Speed
) -> tuple[dict[str, float], dict[str, float]]:
    """(part -> seconds, part -> hidden seconds) of the messages of data parallelism and the update, on the stage that
    takes longest."""
    found = []
    distinct = {id(plan): (plan, row) for plan, row in zip(plans, passes, strict=True)}
    for plan, row in distinct.values():
        gradient, optimizer = plan.config.training_config.gradient, plan.config.optimizer_config
        sent = [(one, speed.message(one)) for one in gradients(plan)]
        reduced = sum(seconds for one, seconds in sent if one.what != "parameters")
        gathered = sum(seconds for one, seconds in sent if one.what == "parameters")
        passes_beside = _passes_beside(plan, len(row))
        backward, forward = sum(sum(one.totals[1:]) for one in row), sum(one.totals[0] for one in row)
        beside_backward = passes_beside * backward * gradient.overlaps_on(plan.coordinates)
        beside_forward = passes_beside * forward * optimizer.overlap_param_gather
        hidden = speed.hides * (min(reduced, 0.9 * beside_backward) + min(gathered, 0.9 * beside_forward))
        others = [*hot_copies(plan)] if plan.config.parallel_config.expert_model_parallel_size > 1 else []
        others += reports(plan)
        exposed = reduced + gathered - hidden + sum(speed.message(one) for one in others)
        if speed.placement.group("dp-cp")[0] > 1 and not any(one.meets for one in row):
            micro_batches = plan.config.dataset_config.micro_batch_num
            exposed += speed.device.calibration.uneven * micro_batches * (backward + forward)
        found.append((exposed, update_bytes(plan) / speed.update_bytes_per_second, hidden))
    exposed, update, hidden = max(found, key=lambda each: each[0] + each[1])
    pace = speed.pace(len(plans))
    return {DATA: exposed / pace, "optimizer": update / pace}, {DATA: hidden / pace}


def _passes_beside(plan: StagePlan, chunks: int) -> float:
    """The number of micro-batches in whose passes (of all chunks) reductions of gradients and gathers of parameters may
    hide.
    Those of one chunk run beside its own last micro-batch, or its first, and beside as many of the chunks after it as
    there are stages, since chunks take turns in groups of that many (Narayanan et al., 2021).
    """
    config = plan.config
    group = min(config.parallel_config.pipeline_model_parallel_size, config.dataset_config.micro_batch_num)
    return 1 + (group - 1) * (chunks - 1) / chunks
