"""Bytes between ranks: what one rank sends in a training step, to the byte.

Per layer and micro-batch, forward and backward together, with a = s b h bytes of hidden states (s the length of a
context-parallel rank's shard), t the tensor-parallel, u the Ulysses and r the ring size, F a float32's bytes and e
those of the type that is computed in:

    TP          8 (t-1)/t a                 four all-reduces ("Megatron-LM", Shoeybi et al., 2019)
    TP + SP     10 (t-1)/t a                all-gather and reduce-scatter at each end, and the two inputs that are
                                            gathered again for the weights' gradients (Korthikanti et al., 2022)
    Ulysses     4 (u-1)/u s b (n + g') d/t e    q, k, v to heads and the output back, and their gradients
                                            (Jacobs et al., 2023); g' = lcm(g/t, u) t, key/value heads after repeating
    ring        2 (r-1) (2 e + F) s' b g'' d    keys and values once forward and once backward, and their gradients in
                                            float32 (Liu et al., 2023); s' = u s, g'' the groups after Ulysses

Per micro-batch a stage sends a, with sequence parallelism a/t, forward and the same backward. Per step each of the N
ranks with the same parameters: 2 (N-1)/N F parameters. `step_traffic` has these and everything outside of layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import lcm
from typing import TYPE_CHECKING

from parallel_core.buffers import plan_reductions
from parallel_core.context import SequenceLayout
from parallel_core.costs.collectives import BYTES_SENT
from parallel_core.costs.parameters import stage_buffers
from parallel_core.partition import chunk_layers

if TYPE_CHECKING:
    from parallel_core.config import AllConfig

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
FLOAT32 = INT32 = 4


@dataclass(frozen=True)
class Traffic:
    """Equal calls of one collective by one rank."""

    what: str
    """What they belong to: "layer", "embedding", "head", "cross entropy", "pipeline", "gradients", ..."""
    kind: str
    """The group, one of `topology.KINDS`, or "world"."""
    operation: str
    bytes: int
    """Sent by the rank in one call."""
    calls: int = 1

    def times(self, count: int) -> Traffic:
        """The same, `count` times."""
        return replace(self, calls=self.calls * count)


class TrafficModel:
    """The messages of a configuration, part by part; ranks of one stage all send the same."""

    def __init__(self, config: AllConfig) -> None:
        self.config, self.model, self.parallel = config, config.model_config, config.parallel_config
        parallel = self.parallel
        self.tensor = parallel.tensor_model_parallel_size
        self.sequence = SequenceLayout.of(parallel)
        self.context = self.sequence.context
        self.stages = parallel.pipeline_model_parallel_size
        self.chunks = parallel.virtual_pipeline_model_parallel_size or 1
        self.size = BYTES[self.model.compute_dtype]
        self.tokens = self.sequence.gathered.local_length(self.model.seq_length) * config.dataset_config.batch_size
        self.hidden_states = self.tokens * self.model.hidden_size * self.size
        """Bytes of [s/c, b, h]."""

    def _call(self, what: str, kind: str, operation: str, size: int, members: int) -> Iterator[Traffic]:
        """One call with an input of `size` bytes; nothing in a group of one."""
        if members > 1:
            yield Traffic(what, kind, operation, BYTES_SENT[operation](size, members, 0))

    def _tensor(self, what: str, operation: str, size: int) -> Iterator[Traffic]:
        yield from self._call(what, "tp", operation, size, self.tensor)

    # One micro-batch -------------------------------------------------------------------------------------------------

    def _enter(self, what: str) -> Iterator[Traffic]:
        """Hidden states into a tensor-parallel region, forward; or their gradient into it, backward."""
        if self.sequence.tensor > 1:
            yield from self._tensor(what, "all_gather", self.hidden_states // self.sequence.tensor)

    def _leave(self, what: str) -> Iterator[Traffic]:
        """Out of a region."""
        operation = "reduce_scatter" if self.sequence.tensor > 1 else "all_reduce"
        yield from self._tensor(what, operation, self.hidden_states)

    def _column_parallel_input(self, what: str) -> Iterator[Traffic]:
        """Forward enters; backward enters again, for the weight's gradient, and the input's gradient leaves."""
        yield from self._enter(what)
        yield from self._enter(what)
        yield from self._leave(what)

    def _row_parallel_output(self, what: str) -> Iterator[Traffic]:
        """Forward leaves, backward enters."""
        yield from self._leave(what)
        yield from self._enter(what)

    def layer(self) -> Iterator[Traffic]:
        """One layer, forward and backward: attention and feed-forward each go in and come out."""
        for _ in ("attention", "feed-forward"):
            yield from self._column_parallel_input("layer")
            yield from self._row_parallel_output("layer")
        yield from self._shared_groups()
        yield from self._ulysses()
        yield from self._ring()

    def _shared_groups(self) -> Iterator[Traffic]:
        """Fewer key/value groups than ranks: queries, keys and values of all ranks together, and their gradients."""
        groups = self.model.num_query_groups
        if groups < self.tensor:
            rows = self.tokens * (self.model.num_attention_heads + 2 * groups) * self.model.kv_channels * self.size
            yield from self._tensor("shared groups", "all_gather", rows // self.tensor)
            yield from self._tensor("shared groups", "reduce_scatter", rows)

    def _groups_after_ulysses(self) -> int:
        """Key/value heads of a tensor-parallel rank, each repeated until every Ulysses rank has one."""
        return lcm(max(1, self.model.num_query_groups // self.tensor), self.context.ulysses)

    def _ulysses(self) -> Iterator[Traffic]:
        members = self.context.ulysses
        heads = self.model.num_attention_heads // self.tensor
        for sent in (heads + 2 * self._groups_after_ulysses(), heads):
            own = self.tokens * sent * self.model.kv_channels * self.size
            for _ in ("forward", "backward"):
                yield from self._call("ulysses", "cp-ulysses", "all_to_all", own * (members - 1) // members, members)

    def _ring(self) -> Iterator[Traffic]:
        members = self.context.ring
        # Ulysses before the ring: u times the sequence, 1/u of the heads.
        keys_values = 2 * self.tokens * self._groups_after_ulysses() * self.model.kv_channels
        for size in (self.size, self.size, FLOAT32):
            for message in self._call("ring", "cp-ring", "send", keys_values * size, members):
                yield message.times(members - 1)

    def embedding(self) -> Iterator[Traffic]:
        """Rows of the table from whoever has them; with sequence parallelism the ranks part after positions are added,
        or without these in the same collective."""
        if self.sequence.tensor > 1 and self.model.position_embedding_type != "learned_absolute":
            yield from self._row_parallel_output("embedding")
            return
        yield from self._tensor("embedding", "all_reduce", self.hidden_states)
        yield from self._enter("embedding")

    def head(self) -> Iterator[Traffic]:
        """The output layer's input."""
        yield from self._column_parallel_input("head")

    def cross_entropy(self) -> Iterator[Traffic]:
        """Each token's largest logit, then its sum of exponentials and the target's logit."""
        yield from self._tensor("cross entropy", "all_reduce", self.tokens * FLOAT32)
        yield from self._tensor("cross entropy", "all_reduce", 2 * self.tokens * FLOAT32)

    def loss(self) -> Iterator[Traffic]:
        """Of whole sequences: how many tokens count, and the mean over them."""
        for _ in ("count", "mean"):
            yield from self._call("loss", "cp", "all_reduce", FLOAT32, self.context.size)

    def pipeline(self, stage: int) -> Iterator[Traffic]:
        """Hidden states to the next chunk and gradients to the one before; the very last and very first have none.

        With --variable-seq-lengths each goes after a message with its three sizes.
        """
        sizes = [self.hidden_states // self.sequence.tensor] + [3 * INT32] * self.parallel.variable_seq_lengths
        ends = (stage == self.stages - 1) + (stage == 0)
        for size in sizes:
            for message in self._call("pipeline", "pp", "send", size, self.stages):
                yield message.times(2 * self.chunks - ends)

    def micro_batch(self, stage: int) -> Iterator[Traffic]:
        """Everything of one micro-batch on one stage."""
        skipped = self.parallel.noop_layers or ()
        layers = [n for row in chunk_layers(self.model, self.parallel) for n in row[stage] if n not in skipped]
        for message in self.layer():
            yield message.times(len(layers))
        if stage == 0:
            yield from self.embedding()
        if stage == self.stages - 1:
            yield from self.head()
            yield from self.cross_entropy()
            yield from self.loss()
        yield from self.pipeline(stage)

    # One step --------------------------------------------------------------------------------------------------------

    def gradients(self, stage: int) -> Iterator[Traffic]:
        """Over the replicas; over tensor parallelism partial sums; over first and last stage a tied embedding's."""
        sizes = {
            "dp-cp": self.parallel.data_parallel_size * self.parallel.context_parallel_size,
            "tp": self.tensor,
            "embedding": min(self.stages, 2),
        }
        plans = stage_buffers(self.config, stage)
        for reduction in plan_reductions(plans, {kind: (0, size) for kind, size in sizes.items()}):
            size = (reduction.span.stop - reduction.span.start) * FLOAT32
            what = {"tp": "shared gradients", "embedding": "tied embedding"}.get(reduction.over, "gradients")
            yield from self._call(what, reduction.over, reduction.operation, size, sizes[reduction.over])

    def reports(self) -> Iterator[Traffic]:
        """The gradient's norm, and the loss with its numbers of tokens."""
        yield from self._call("gradient norm", "tp-pp", "all_reduce", FLOAT32, self.tensor * self.stages)
        yield from self._call("loss report", "world", "all_reduce", 3 * FLOAT32, self.parallel.world_size)

    def step(self, stage: int) -> Iterator[Traffic]:
        """Everything of one training step on one stage."""
        for message in self.micro_batch(stage):
            yield message.times(self.config.dataset_config.micro_batch_num)
        yield from self.gradients(stage)
        yield from self.reports()


def step_traffic(config: AllConfig, stage: int) -> list[Traffic]:
    """What each rank of a stage sends in one training step; equal messages are one entry."""
    counts: dict[Traffic, int] = {}
    for message in TrafficModel(config).step(stage):
        key = replace(message, calls=1)
        counts[key] = counts.get(key, 0) + message.calls
    return [message.times(calls) for message, calls in counts.items() if calls]
