"""Options of gradients between data-parallel ranks: types, buckets, sharding."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import lcm

from parallel_core.buffers.layout import ALIGNMENT, BucketRule
from parallel_core.config.base import Config, option
from parallel_core.findings import Finding
from parallel_core.sharding import SHARDS_OF_STATES, Coordinates

MEM_ALIGN = 256
"""Number of elements; with --enable-mem-align each parameter begins at a multiple of it: 512 bytes of a 16-bit type."""


@dataclass(kw_only=True)
class GradientConfig(Config):
    """Options of the accumulation and reduction of gradients, and of the tensors that data-parallel ranks shard
    ("ZeRO", 2020)."""

    accumulate_allreduce_grads_in_fp32: bool = option("--accumulate-allreduce-grads-in-fp32", False)
    """Add up and reduce gradients in float32, as those of bfloat16 weights are without --grad-reduce-in-bf16."""
    grad_reduce_in_bf16: bool = option("--grad-reduce-in-bf16", False)
    """Add up and reduce gradients of bfloat16 weights in bfloat16, not in float32."""
    communication_data_type: str | None = option("--communication-data-type", None, choices=("fp32", "bf16", "fp16"))
    """Type in which gradients are sent between data-parallel ranks; the one that they are added up in if not given."""
    wrap_with_ddp: bool = option("--no-wrap-with-ddp", True)
    """Reduce gradients in buckets. Switched off, those of each buffer are reduced at once, after the last backward."""
    bucket_size: int | None = option("--ddp-bucket-size", None, at_least=1)
    """Number of elements of gradients in one bucket; if not given max(40,000,000, 1,000,000 x data-parallel size). With
    --overlap-grad-reduce later pipeline stages have one bucket a chunk."""
    enable_mem_align: bool = option("--enable-mem-align", False)
    """Begin every parameter, its gradient, and every replica's part of a bucket at a multiple of 512 bytes."""
    average_in_collective: bool = option("--ddp-average-in-collective", False)
    """Divide gradients by the number of replicas after they were summed also with a loss scale, where it is done
    before; without one it is done after in any case."""
    overlap_grad_reduce: bool = option("--overlap-grad-reduce", False)
    """Reduce each bucket as soon as it is full."""
    delay_grad_reduce: bool = option("--delay-grad-reduce", False)
    """Reduce gradients on later pipeline stages after the last backward, also with --overlap-grad-reduce."""
    use_distributed_optimizer: bool = option("--use-distributed-optimizer", False)
    """Share optimizer states out over data-parallel ranks."""
    num_distributed_optimizer_instances: int = option("--num-distributed-optimizer-instances", 1, at_least=1)
    """Number of copies of the sharded optimizer states: ranks share within a copy."""
    zero_stage: int = option("--zero-stage", None, at_least=0, at_most=3)
    """Tensors that data-parallel ranks share out: 0 none, 1 optimizer states, 2 gradients too, 3 weights too; if not
    given 1 with --use-distributed-optimizer, else 0."""
    parallel_optimizer_comm_recompute: bool = option("--no-parallel-optimizer-comm-recompute", True)
    """Gather a layer's weights again for its backward (ZeRO stage 3), instead of keeping those of the forward until the
    update."""
    cpu_offload_params: bool = option("--cpu-offload-params", False)
    """Keep a rank's part of the weights in host memory; needs ZeRO stage 3. Without effect on a CPU, whose weights are
    there anyway."""

    def type_for(self, parameter_type: str) -> str:
        """The type in which gradients of parameters of type `parameter_type` are added up and reduced, by Megatron's
        rule: of bfloat16 float32, or bfloat16 with --grad-reduce-in-bf16; of others their own, or float32 with
        --accumulate-allreduce-grads-in-fp32."""
        if parameter_type == "bfloat16":
            return "bfloat16" if self.grad_reduce_in_bf16 else "float32"
        return "float32" if self.accumulate_allreduce_grads_in_fp32 else parameter_type

    def type_sent(self, gradient_type: str) -> str:
        """The type in which gradients that are added up in `gradient_type` are sent between data-parallel ranks: that
        of --communication-data-type, else `gradient_type`."""
        named = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
        return gradient_type if self.communication_data_type is None else named[self.communication_data_type]

    @property
    def shards_states(self) -> bool:
        """Whether a rank updates only its part of the parameters (the distributed optimizer)."""
        return self.zero_stage > 0

    @property
    def zero(self) -> tuple[int, bool]:
        """The stage of ZeRO, and whether stage 3 gathers weights again for the backward."""
        return self.zero_stage, self.parallel_optimizer_comm_recompute

    def bucket_rule(self, coordinates: Coordinates) -> BucketRule:
        """The rule by which the rank at these coordinates deals its parameters into buckets."""
        size = self._bucket_size_on(coordinates)
        if not self.shards_states:
            return BucketRule(size, entry_alignment=MEM_ALIGN if self.enable_mem_align else ALIGNMENT)
        replicas = lcm(*(coordinates.get(kind, (0, 1))[1] for kind in SHARDS_OF_STATES.values()))
        return BucketRule.sharded(replicas, size, *((MEM_ALIGN,) if self.enable_mem_align else ()))

    def overlaps_on(self, coordinates: Coordinates) -> bool:
        """Whether --overlap-grad-reduce is given and acts on the rank at these coordinates: with --delay-grad-reduce on
        the first pipeline stage alone. The stage of ZeRO is not regarded."""
        return self.overlap_grad_reduce and not (self.delay_grad_reduce and _is_on_later_stage(coordinates))

    def _bucket_size_on(self, coordinates: Coordinates) -> int | None:
        """Elements of a bucket on a rank; None: one bucket for each chunk, with ZeRO stages 2 and 3 for each cell, with
        --no-wrap-with-ddp for all. If reductions overlap the backward, later stages, which the first one waits for,
        reduce a whole chunk (Megatron's rule)."""
        is_late = self.overlap_grad_reduce and _is_on_later_stage(coordinates)
        if not self.wrap_with_ddp or is_late or self.zero_stage >= 2:
            return None
        return self.bucket_size or max(40_000_000, 1_000_000 * coordinates.get("dp", (0, 1))[1])

    def derive(self) -> None:
        self.fill("zero_stage", lambda: int(self.use_distributed_optimizer))
        self.use_distributed_optimizer = self.use_distributed_optimizer or self.zero_stage > 0

    def rules(self) -> Iterator[Finding]:
        if self.use_distributed_optimizer and self.zero_stage == 0:
            rule = "--use-distributed-optimizer is stage 1 and part of the higher ones"
            yield self.breaks("zero_stage", rule, "leave one of them out")
        if self.cpu_offload_params and self.zero_stage != 3:
            rule = "only weights that are gathered when they are needed can lie elsewhere: needs --zero-stage 3"
            yield self.breaks("cpu_offload_params", rule, "add it, or leave --cpu-offload-params out")
        if self.num_distributed_optimizer_instances > 1 and not self.use_distributed_optimizer:
            fix = "add that or leave this out"
            yield self.needs("num_distributed_optimizer_instances", "--use-distributed-optimizer", fix)


def _is_on_later_stage(coordinates: Coordinates) -> bool:
    return coordinates.get("pp", (0, 1))[0] > 0
