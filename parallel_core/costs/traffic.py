"""Bytes between ranks: the messages that one rank sends in a training step.

Per micro-batch and layer of attention and a dense MLP, forward and backward together, without recomputation or frozen
weights, with a the bytes of hidden states [s, b, h] (s the length of a context-parallel rank's shard), n heads and g
key/value groups (t or more) of d channels, t the tensor-parallel, u the Ulysses and r the ring size, F a float32's
bytes and e those of the type that is computed in:

    TP          8 (t-1)/t a                 four all-reduces ("Megatron-LM", Shoeybi et al., 2019)
    TP + SP     10 (t-1)/t a                all-gather and reduce-scatter at each end, and the two inputs that are
                                            gathered again for the weights' gradients (Korthikanti et al., 2022)
    Ulysses     4 (u-1)/u s b (n + g') d/t e    q, k, v to heads and the output back, and their gradients
                                            (Jacobs et al., 2023); g' = lcm(g/t, u) t, key/value heads after repeating
    ring        2 (r-1) (2 e + F) s' b g'' d    keys and values once forward and once backward, and their gradients in
                                            float32 (Liu et al., 2023); s' = u s, g'' the groups after Ulysses

Those are the blocks' (`Block.messages`). Per micro-batch a chunk sends a, with sequence parallelism a/t, to the chunk
behind it, and as much to the one before it, in the residual's type. Per step each of the N ranks with the same
parameters sends 2 (N-1)/N times the bytes of their gradients, in the type in which these are sent; with ZeRO stage 1
(one instance) (N-1)/N times those bytes, and (N-1)/N times the parameters'.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import prod

from parallel_core.blocks import CarriedChoice, Experts, blocks_within
from parallel_core.blocks.micro_batch import FLOAT32, INT32
from parallel_core.buffers.collectives import plan_gathers, plan_reductions
from parallel_core.buffers.layout import Span
from parallel_core.buffers.slots import SlotPlan, gathered, micro_batch_visits
from parallel_core.costs.stage import StagePlan
from parallel_core.messages import BYTES_SENT, Message, message
from parallel_core.moe.hot_experts import first_hot
from parallel_core.numerics.dtypes import DTYPES
from parallel_core.optimizer import update_rule
from parallel_core.sharding import MODEL_GROUPS, MODEL_KINDS, SHARDS_OF_STATES, place
from parallel_core.step_figures import figures_of


def updates(plan: StagePlan) -> Iterator[Message]:
    """Messages of an optimizer's update by rules that are not elementwise (Muon): a sum that puts a matrix together
    where it lies on several ranks of the distributed optimizer, then, if this rank has a part, the rule's own
    messages."""
    optimizer, sharded = plan.config.optimizer_config, plan.config.training_config.gradient.shards_states
    coordinates = plan.coordinates
    for buffer in plan.buffers:
        over = SHARDS_OF_STATES[buffer.replicas]
        rank, members = coordinates[over] if sharded else (0, 1)
        for entry in buffer.entries:
            rule = update_rule(entry.spec, optimizer)
            if rule.is_elementwise:
                continue
            owners, size = buffer.owners(entry.span, members), entry.place.size * DTYPES["float32"].bytes
            if len(owners) > 1:
                yield from message(over, "all_reduce", size, members, "direction of a matrix")
            if rank in owners:
                yield from rule.messages(entry, optimizer.options_of(rule), coordinates)


OTHER_SUMS = {"tp": "partial gradients", "expert-tp": "partial gradients", "embedding": "tied embedding"}
"""Kind of group -> the purpose of a sum of gradients over it; over other kinds it is the replicas' "gradients"."""


def pipeline(plan: StagePlan) -> Iterator[Message]:
    """Messages of one micro-batch from a rank of the stage to other stages: of each of its chunks hidden states to the
    next chunk (with the channels of a choice of keys, if that chunk is sent one), and gradients of all that it was sent
    to the chunk before; none where that chunk is on the same stage or does not exist. With --variable-seq-lengths, or
    if any chunk of the model is sent a choice of keys, there is for each a further message with its sizes (three
    int32)."""
    parallel, micro_batch, model = plan.config.parallel_config, plan.micro_batch, plan.config.model_config
    placement = parallel.placement
    virtual = [placement.virtual(plan.stage, chunk) for chunk in range(placement.chunks)]
    tells_shapes = parallel.variable_seq_lengths or CarriedChoice.any_in(model)
    for backward, along in ((False, 1), (True, -1)):
        for number in virtual:
            end = number + along
            if not 0 <= end < placement.stages * placement.chunks or placement.place(end)[0] == plan.stage:
                continue
            choice = CarriedChoice.into(model, max(number, end))
            width = model.residual_width + (choice.channels if choice else 0)
            hidden_states = micro_batch.tokens_between * width * micro_batch.residual_item_size
            for size in [hidden_states] + [3 * INT32] * tells_shapes:
                yield from message("pp", "send", size, placement.stages, "pipeline", backward)


def gradients(plan: StagePlan) -> Iterator[Message]:
    """Messages of a step's gradients and parameters: sums of gradients over the replicas (with the distributed
    optimizer a rank is left with its own part; with ZeRO stages 2 and 3 those in slots are summed in each micro-batch),
    sums of partial gradients over tensor parallelism, also that of experts, sums of a tied embedding's gradients over
    the first and last stage; and gathers of parameters, with ZeRO stage 3 of those in slots in each micro-batch."""
    config, coordinates, residences = plan.config, plan.coordinates, plan.residences
    plans, sharded = plan.buffers, config.training_config.gradient.shards_states
    micro_batches = config.dataset_config.micro_batch_num
    for one in plan_reductions(plans, coordinates, sharded=sharded):
        what = OTHER_SUMS.get(one.over, "gradients")
        kept_as = plans[one.buffer].gradient_type
        sent_as = config.training_config.gradient.type_sent(kept_as) if what == "gradients" else kept_as
        size = one.span.size * DTYPES[sent_as].bytes
        is_transient = one.span in residences[one.buffer][1].gradient_slots.cells
        times = micro_batches if is_transient and one.operation == "reduce_scatter" else 1
        yield from _repeated(times, message(one.over, one.operation, size, coordinates[one.over][1], what))
    gathers = [_gathers_of_cells(plan, residence.parameter_slots) for _, residence in residences]
    for one in plan_gathers(plans, coordinates, sharded=sharded):
        members = coordinates[one.over][1]
        size = one.span.size // members * DTYPES[plans[one.buffer].parameter_type].bytes
        times = gathers[one.buffer].get(one.span, 1)
        yield from _repeated(times, message(one.over, one.operation, size, members, "parameters"))


def _repeated(times: int, messages: Iterable[Message]) -> Iterator[Message]:
    return (one.times(times) for one in messages)


def _gathers_of_cells(plan: StagePlan, slots: SlotPlan) -> dict[Span, int]:
    """Transient bucket -> how often its parameters are gathered in a step."""
    bucket_of = {cell: bucket for bucket, cell in slots.cells.items()}
    cells, recomputed = 0, []
    for chunk in plan.chunks:
        recomputed += [range(group.start + cells, group.stop + cells) for group in chunk.recomputed_cells()]
        cells += len(chunk.cells())
    visits = micro_batch_visits(cells, recomputed) * plan.config.dataset_config.micro_batch_num
    found = Counter(gathered(visits, {cell: slots.slots[bucket] for cell, bucket in bucket_of.items()}))
    return {bucket_of[cell]: times for cell, times in found.items()}


def hot_copies(plan: StagePlan) -> Iterator[Message]:
    """Messages of the hot experts of each layer that has experts, for an expert-parallel size above 1: weights from
    their owners to the copies, and sums of the copies' gradients. Hot are experts 0 ... --hot-expert-num - 1, as in the
    first step."""
    config, coordinates = plan.config, plan.coordinates
    moe, (rank, owners) = config.model_config.moe_config, coordinates["ep"]
    for block in (block for chunk in plan.chunks for block in blocks_within(chunk, Experts)):
        specs = list(block.expert.parameters().values())
        size = sum(prod(place(spec.shard, coordinates).shape) for spec in specs)
        kept_as, summed_as = specs[0].dtype, config.training_config.gradient.type_for(specs[0].dtype)
        for number in first_hot(moe.hot_expert_num):
            sent = BYTES_SENT["broadcast"](size * DTYPES[kept_as].bytes, owners, number in block.local(rank))
            yield Message("hot experts", "ep", "broadcast", sent)
            yield from message("ep", "all_reduce", size * DTYPES[summed_as].bytes, owners, "hot experts", True)


def reports(plan: StagePlan) -> Iterator[Message]:
    """Messages of the figures of a step: the gradient's norm and, with a loss scaler, whether it is finite, a float32
    number in each message; in one message three numbers of the loss and its tokens and all numbers of the sums that
    layers report, two float32 numbers for each of them; the maxima that layers report, one float32 number for each."""
    config, parallel = plan.config, plan.config.parallel_config
    yield from _gradient_norm(plan)
    if config.training_config.precision.make_loss_scaler() is not None:
        yield from message("world", "all_reduce", FLOAT32, parallel.world_size, "overflow")
    figures = figures_of(config.model_config)
    numbers = 3 + sum(prod(figure.shape) for figure in figures if not figure.is_largest)
    yield from message("world", "all_reduce", 2 * numbers * FLOAT32, parallel.world_size, "loss report")
    for figure in figures:
        if figure.is_largest:
            yield from message("world", "all_reduce", prod(figure.shape) * FLOAT32, parallel.world_size, "loss report")


def _gradient_norm(plan: StagePlan) -> Iterator[Message]:
    """Messages of the gradient's norm: over all ranks that together hold one model; for experts separately, where they
    lie on other ranks."""
    config, coordinates = plan.config, plan.coordinates
    stages = config.parallel_config.pipeline_model_parallel_size
    ranks = {kind: prod(coordinates[axis][1] for axis in axes) for kind, axes in MODEL_KINDS.items()}
    apart = coordinates["ep"][1] > 1 or coordinates["expert-tp"][1] != coordinates["tp"][1]
    for kind in MODEL_GROUPS if apart else ("dp-cp",):
        over = SHARDS_OF_STATES[kind]
        if config.training_config.gradient.shards_states:
            yield from message(over, "all_reduce", FLOAT32, coordinates[over][1], "gradient norm")
        yield from message(MODEL_GROUPS[kind], "all_reduce", FLOAT32, ranks[kind] * stages, "gradient norm")


def step(plan: StagePlan) -> Iterator[Message]:
    """The messages of `step_traffic`, part by part; equal ones may come several times."""
    count = plan.config.dataset_config.micro_batch_num
    for chunk in plan.chunks:
        yield from (one.times(count) for one in chunk.messages(plan.micro_batch))
    yield from (one.times(count) for one in pipeline(plan))
    yield from gradients(plan)
    if plan.config.parallel_config.expert_model_parallel_size > 1:
        yield from hot_copies(plan)
    yield from updates(plan)
    yield from reports(plan)


def step_traffic(plan: StagePlan) -> list[Message]:
    """The messages of a rank of a stage in one training step; equal messages are one entry. Some small ones are
    not among them, such as those of --log-params-norm and --exit-signal-handler.

    They are those of the replica `plan.replica`; with the distributed optimizer or hot experts other replicas may send
    more or less.
    """
    counts: Counter[Message] = Counter()
    for one in step(plan):
        counts[replace(one, calls=1)] += one.calls
    return [one.times(calls) for one, calls in counts.items() if calls]
