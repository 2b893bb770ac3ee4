"""Bytes of activations that a rank keeps between a micro-batch's forward and its backward."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from parallel_core.config import AllConfig
from parallel_core.costs.stage import StagePlan
from parallel_core.schedules import SPLIT, Backward, Exchange, Forward, Placement, communicate, order
from parallel_core.schedules.actions import Action, Compute, computes_of, frees, of_entry, split_backwards


def kept_bytes(plan: StagePlan) -> list[int]:
    """The bytes that a rank keeps of one micro-batch between forward and backward, for each of the stage's chunks; the
    schedule says how many micro-batches are in flight."""
    return [sum(chunk.kept_bytes(plan.micro_batch).values()) for chunk in plan.chunks]


def peak_kept_bytes(plan: StagePlan, *, on_device: bool = False) -> int:
    """The most bytes that a rank of the stage keeps at once under its schedule, in a step of `enough_micro_batches`:
    every micro-batch in flight, what recomputed parts keep until their backward is through, and hidden states on their
    way between stages.

    Temporary memory of an operator is not counted. on_device: without what is offloaded to host memory.
    """
    kept, in_backward = kept_bytes(plan), [chunk.bytes_in_backward(plan.micro_batch) for chunk in plan.chunks]
    if on_device:
        offloaded = [chunk.offloaded_bytes(plan.micro_batch) for chunk in plan.chunks]
        kept, in_backward = ([a - b for a, b in zip(sizes, offloaded, strict=True)] for sizes in (kept, in_backward))
    return max((moment.kept + moment.again for moment in moments(plan, kept, in_backward)), default=0)


class Moment(NamedTuple):
    """The bytes that a rank of a stage keeps while it runs one computation of the schedule (`action`): the sum of
    `kept`, those of all micro-batches in flight and of hidden states on their way between stages, and `again`: in a
    backward the chunk's entry in the argument `in_backward` of `moments` less that in its argument `kept`, often below
    0; in other computations 0."""

    action: Compute
    kept: int
    """Bytes of all micro-batches in flight, and of hidden states on their way between stages."""
    again: int
    """In a backward, the chunk's entry in the argument `in_backward` of `moments` less that in `kept`; else 0."""


def moments(plan: StagePlan, kept: Sequence[int], in_backward: Sequence[int]) -> Iterator[Moment]:
    """The bytes kept during each of the stage's computations, in the schedule's order, in a step of
    `enough_micro_batches` micro-batches.

    kept: for each chunk the bytes of a micro-batch from its forward to its backward, or to its weight gradients where
    these are apart. in_backward: for each chunk the bytes that count in place of `kept` while its backward runs.
    """
    config = plan.config
    parallel = config.parallel_config
    group_size = parallel.microbatch_group_size_per_virtual_pipeline_stage
    micro_batches = enough_micro_batches(config)
    actions = _schedule(parallel.schedule_name, parallel.placement, micro_batches, group_size)[plan.stage]
    split = split_backwards(computes_of(actions))
    hidden_states, now = hidden_state_bytes(plan), 0
    for action, messages in _with_messages(actions):
        now += kept[action.chunk] * isinstance(action, Forward)
        again = (in_backward[action.chunk] - kept[action.chunk]) * isinstance(action, Backward)
        yield Moment(action, now + messages * hidden_states, again)
        now -= kept[action.chunk] * frees(action, split)


def enough_micro_batches(config: AllConfig) -> int:
    """The number of micro-batches, at most the step's, for which costs go through a schedule: as many as show its
    warm-up, steady state and drain. For GPipe, which keeps all micro-batches, all of the step's."""
    parallel, micro_batches = config.parallel_config, config.dataset_config.micro_batch_num
    if parallel.schedule_name == "gpipe":
        return micro_batches
    stages = parallel.pipeline_model_parallel_size
    group = parallel.microbatch_group_size_per_virtual_pipeline_stage or stages
    enough = (3 if parallel.schedule_name in SPLIT else 2) * max(group, stages)
    return micro_batches if micro_batches <= enough + group else enough + (micro_batches - enough) % group


@lru_cache(maxsize=1)
def _schedule(name: str, placement: Placement, micro_batches: int, group_size: int | None) -> list[list[Action]]:
    """The actions of every stage; the latest answer is kept, since costs ask about all stages of a pipeline one after
    another."""
    return communicate(order(name, placement, micro_batches, group_size), placement)


def _with_messages(actions: Sequence[Action]) -> Iterator[tuple[Compute, int]]:
    """Each computation, and the number of hidden states or gradients of them that exist beside the kept bytes while it
    runs: the results of the computation before it, or of the pair, on their way to other stages, and what other stages
    send, from the exchange on that allocates memory for it. The input of a forward is among its kept bytes."""
    messages: set[Compute] = set()
    before: set[Compute] = set()
    for action in actions:
        if isinstance(action, Exchange):
            messages |= {send.produced for send in action.sends} | {receive.consumed for receive in action.receives}
            continue
        for compute in of_entry(action):
            yield compute, len(messages) - (isinstance(compute, Forward) and compute in messages)
            messages.discard(compute)
        messages -= before
        before = {*of_entry(action)}


def hidden_state_bytes(plan: StagePlan) -> int:
    """Bytes of the residual stream of one micro-batch on a rank, which goes from one stage to another; a choice of keys
    that is sent with it does not count."""
    micro_batch = plan.micro_batch
    return micro_batch.tokens_between * plan.config.model_config.residual_width * micro_batch.residual_item_size
