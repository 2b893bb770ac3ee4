"""The plan of a run on a kind of device, made without such a device: whether it fits, how long each part of a step
takes."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from parallel_core.config import AllConfig
from parallel_core.costs import BufferBytes, StagePlan, buffer_bytes
from parallel_core.costs.stage import flops_of
from parallel_core.costs.traffic import step_traffic
from parallel_core.numerics.dtypes import DTYPES
from parallel_core.planner.device import Device, find_device
from parallel_core.planner.engine import engine_of
from parallel_core.planner.memory import StageMemory, stage_memory
from parallel_core.planner.speed import Placement, Speed, message_part, topology_of
from parallel_core.planner.step import StepTime, step_time

SECONDS_OF_DAY = 86400.0
DEVICES = {True: "CPU", False: "Ascend-910B"}
"""Whether a run computes on a CPU -> name of the device for which it is planned by default."""


@dataclass(frozen=True)
class Beyond:
    """Options that make other programs faster, but not training here. products_in: the type of the inputs of
    products, if it is not the one that layers compute in; overlaps_tensor: whether --tp-comm-overlap was given."""

    products_in: str = ""
    """The type of the inputs of products, if it is not the one that layers compute in (--fp8-format); else empty."""
    overlaps_tensor: bool = False
    """Whether --tp-comm-overlap was given."""


@dataclass(frozen=True, eq=False)
class Plan:
    """The plan of one run on a kind of device: everything that is predicted, computed when it is asked for. refused,
    assumed: sentences about flags that training refuses, and about values that were not given; beyond: options that
    make other programs faster."""

    config: AllConfig = field(repr=False)
    device: Device
    refused: tuple[str, ...] = ()
    """Sentences about flags that training refuses and the plan passes over."""
    assumed: tuple[str, ...] = ()
    """Sentences about values that were not given and are assumed."""
    beyond: Beyond = Beyond()

    @classmethod
    def of_run(cls, config: AllConfig) -> "Plan":
        """The plan of a run of this program, on the device of --plan-device, or the default one for a CPU or an Ascend.
        The program that the device's description names (`engine`) is replaced by this one, with fused attention. Raises
        ConfigError as `find_device`."""
        named = config.training_config.log.plan_device
        device = find_device(named or DEVICES[config.parallel_config.is_on_cpu])
        return cls(config, replace(device, engine="pynative", fuses_attention=True))

    @cached_property
    def placement(self) -> Placement:
        """The job's process groups on nodes of the device."""
        return Placement(topology_of(self.config.parallel_config), self.device.devices_per_node)

    @cached_property
    def stages(self) -> list[StagePlan]:
        """The plan of a rank of each pipeline stage, first to last."""
        count = self.config.parallel_config.pipeline_model_parallel_size
        return [StagePlan(self.config, stage) for stage in range(count)]

    @cached_property
    def _models(self) -> list[StagePlan]:
        """For each stage the first stage that is equal but for the numbers of its layers, so that equal ones are
        computed once."""
        distinct: list[StagePlan] = []
        for plan in self.stages:
            if not any(plan.shape == other.shape for other in distinct):
                distinct.append(plan)
        return [next(other for other in distinct if other.shape == plan.shape) for plan in self.stages]

    @cached_property
    def buffers(self) -> list[BufferBytes]:
        """The bytes of weights, gradients and optimizer states of a rank of each stage, wherever they lie, first to
        last."""
        found = {number: buffer_bytes(plan) for number, plan in {id(plan): plan for plan in self._models}.items()}
        return [found[id(plan)] for plan in self._models]

    @cached_property
    def memory(self) -> list[StageMemory]:
        """The memory of a rank of each stage, first to last."""
        pairs = zip(self.stages, self.buffers, strict=True)
        return [stage_memory(plan, owned, self.device) for plan, owned in pairs]

    @cached_property
    def fullest(self) -> int:
        """The number, from 0, of the stage that needs most memory, the first of several."""
        return max(range(len(self.memory)), key=lambda stage: self.memory[stage].needed)

    @property
    def fits(self) -> bool:
        """Whether the fullest stage has room on its device at the upper end of its range, reserved memory included."""
        return self.memory[self.fullest].needed <= self.device.memory_bytes

    @cached_property
    def speed(self) -> Speed:
        """The speed of the device in the type in which the model computes, and of messages between the job's ranks."""
        model, engine = self.config.model_config, engine_of(self.device, self.config)
        dtype, drops = model.compute_dtype, engine.attention_dropout
        return Speed(
            self.device, dtype, self.placement, engine.writes_scores, drops, DTYPES[dtype].bytes, **vars(self.beyond)
        )

    @cached_property
    def step(self) -> StepTime:
        """The seconds of a training step by part, with the last global batch size."""
        return step_time(self._models, self.speed)

    @property
    def samples(self) -> int:
        """The global batch size, sequences of a step: the last one where it changes."""
        return self.config.batch_sizes.final

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of the whole job."""
        return self.samples * self.config.model_config.seq_length / self.step.total

    @cached_property
    def flops(self) -> float:
        """Floating-point operations, mainly of matrix products, of the whole model in a step of the last global batch
        size, without recomputed ones."""
        chunks = (chunk for stage in self.stages for chunk in stage.chunks)
        return flops_of(chunks, self.config.model_config.seq_length) * self.samples

    @property
    def peak(self) -> float:
        """Peak FLOP/s of a device, by its description, in the type of the inputs of products; if it has no number for
        that, in the compute type, else in float32."""
        peak = self.device.peak(self.config.model_config.compute_dtype)
        return self.device.peak_flops.get(self.beyond.products_in, peak)

    @property
    def flops_per_device(self) -> float:
        """Floating-point operations per second of one device, without recomputed ones."""
        return self.flops / self.config.parallel_config.world_size / self.step.total

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation: `flops_per_device` as a part of the peak (Chowdhery et al., "PaLM", 2022)."""
        return self.flops_per_device / self.peak

    @property
    def hfu(self) -> float:
        """Hardware FLOPs utilisation: operations that a device does in a second, recomputed ones included, as a part of
        the peak. Attention's backward counts as 2.5 forwards, in `mfu` as two."""
        return self.step.flops_per_device / self.step.total / self.peak

    @property
    def days(self) -> float | None:
        """Days of all steps of the run, each as long as one with the last global batch size; None where their number is
        0 or not known, as where epochs leave it to the data."""
        steps = self.config.training_config.training_iters
        return steps * self.step.total / SECONDS_OF_DAY if steps else None

    @cached_property
    def traffic(self) -> dict[str, float]:
        """Part of a step's time -> bytes that a rank of the first stage sends in a step, but for some small messages
        (see `step_traffic`)."""
        found: Counter[str] = Counter()
        for one in step_traffic(self.stages[0]):
            found[message_part(one.kind)] += one.bytes * one.calls
        return dict(found)

    @cached_property
    def warnings(self) -> list[str]:
        """Sentences about flags that training refuses, and about uneven stages, tensor-parallel groups that reach over
        nodes, experts with few rows, and a large bubble."""
        return [*self.refused, *_warnings(self)]

    @property
    def assumptions(self) -> list[str]:
        """Sentences about values that were not given, the assumed program, the calibration and its errors, keys of it
        that nobody has measured, and, with experts, their even load."""
        device, calibration = self.device, self.device.calibration
        errors = f"memory within {calibration.ranges.memory:.0%}, time within {calibration.ranges.time:.0%}"
        program = {"megatron": "Megatron-Core on Transformer Engine", "pynative": "this program"}[device.engine]
        found = [*self.assumed, f"{device.name} runs {program}; calibrated by {calibration.source}: {errors}"]
        flags = "--use-flash-attn or --attention-backend flash"
        kept = f"writes and keeps its matrix of scores; {flags} plans a fused kernel"
        writes = engine_of(device, self.config).writes_scores
        found.append(f"attention {kept if writes else 'is a fused kernel, which keeps no scores'}")
        if device.assumed:
            found.append(f"nobody has measured these of {device.name}: {', '.join(device.assumed)}")
        if self.config.model_config.moe_config.num_experts:
            found.append("every expert gets as many tokens as the others")
        return found


def _warnings(plan: Plan) -> Iterator[str]:
    parallel, moe = plan.config.parallel_config, plan.config.model_config.moe_config
    work = plan.step.work
    if len(work) > 1 and min(work) < 0.8 * max(work):
        slowest = plan.step.slowest
        yield (
            f"uneven stages: stage {slowest} computes {max(work):.3g} s, stage {work.index(min(work))} "
            f"{min(work):.3g} s; move layers with --decoder-first-pipeline-num-layers or "
            "--decoder-last-pipeline-num-layers"
        )
    members, per_node = plan.placement.group("tp")
    if members > per_node:
        yield (
            f"--tensor-model-parallel-size {members}: groups reach over nodes of {plan.device.devices_per_node} "
            "devices; use pipeline or data parallelism there"
        )
    if moe.num_experts:
        data, model = plan.config.dataset_config, plan.config.model_config
        tokens = data.batch_size * model.seq_length // parallel.context_parallel_size
        rows = tokens * moe.moe_router_topk * parallel.expert_model_parallel_size / moe.num_experts
        if rows < 256:
            yield f"experts starve: {rows:.0f} rows for each in a micro-batch; raise --micro-batch-size"
    if plan.step.bubble_fraction > 0.2:
        yield f"the bubble takes {plan.step.bubble_fraction:.0%} of the pipeline's time; use more micro-batches"
