"""Options of the layout of ranks, and of one process."""

from collections.abc import Iterator
from dataclasses import field
from typing import Any

from parallel_core.config.base import Config, option, section, sibling
from parallel_core.config.fused import NOTHING_FUSED, FusedOperators
from parallel_core.config.recompute import STAGE_NAMES, RecomputeConfig
from parallel_core.findings import Finding
from parallel_core.schedules.actions import Placement
from parallel_core.schedules.generators import FOLDED, GENERATORS, SPLIT
from parallel_core.sizes import (
    CONTEXT_PARALLEL_ALGORITHMS,
    RANK_ORDERS,
    RING,
    model_copies_are_whole,
    model_parallel_size,
)
from parallel_core.system.environment import is_on_cpu


@section
class ParallelConfig(Config):
    """Options of the degrees of parallelism, the pipeline's layout, and the process's device and threads."""

    world_size: int = option("--world-size", 1, at_least=1)
    """Processes of the job."""
    data_parallel_size: int = option("--data-parallel-size", None, at_least=1)
    """Copies of the model: what the other sizes leave of `world_size`."""
    tensor_model_parallel_size: int = option("--tensor-model-parallel-size", 1, at_least=1)
    """Number of ranks that share each layer."""
    pipeline_model_parallel_size: int = option("--pipeline-model-parallel-size", 1, at_least=1)
    """Number of stages of the pipeline."""
    context_parallel_size: int = option("--context-parallel-size", 1, at_least=1)
    """Number of ranks that share each sequence."""
    expert_model_parallel_size: int = option("--expert-model-parallel-size", 1, at_least=1)
    """Number of ranks that share the experts of a layer."""
    expert_tensor_parallel_size: int = option("--expert-tensor-parallel-size", None, at_least=1)
    """Number of ranks that share each expert; the tensor-parallel size if not given."""
    unaligned_linear: bool = option("--unaligned-linear", False)
    """Allow a tensor-parallel size that does not divide heads or widths of feed-forward blocks or experts: the last
    ranks have zeros for what is missing."""
    sequence_parallel: bool = option("--sequence-parallel", False)
    """Cut activations along the sequence between the tensor-parallel regions."""
    context_parallel_algo: str = option("--context-parallel-algo", RING, choices=CONTEXT_PARALLEL_ALGORITHMS)
    """Ring attention (keys and values travel), Ulysses (all-to-all over heads), or Ulysses inside a ring (hybrid)."""
    ulysses_degree_in_cp: int | None = option("--ulysses-degree-in-cp", None, at_least=1)
    """Ulysses size within the hybrid algorithm."""

    virtual_pipeline_model_parallel_size: int | None = option(
        "--virtual-pipeline-model-parallel-size", None, at_least=1
    )
    """Number of model chunks on each stage of an interleaved pipeline."""
    num_layers_per_virtual_pipeline_stage: int | None = option(
        "--num-layers-per-virtual-pipeline-stage", None, at_least=1
    )
    """Number of layers of one chunk: the other way to ask for interleaving."""
    microbatch_group_size_per_virtual_pipeline_stage: int | None = option(
        "--microbatch-group-size-per-virtual-pipeline-stage", None, at_least=1
    )
    """Number of micro-batches that go through one chunk before those of the next; the number of stages if not given."""
    num_layer_list: list[int] | list[list[int]] | None = option("--num-layer-list", None)
    """Numbers of layers: one for each stage, or a list for each chunk with one for each stage."""
    offset: list[int] | list[list[int]] | None = option("--offset", None)
    """Numbers of layers beyond an even share: one for each stage, or a list for each chunk with one for each stage."""
    noop_layers: list[int] | None = option("--noop-layers", None)
    """Global numbers, from 0, of layers that do nothing, and only even out the stages."""
    decoder_first_pipeline_num_layers: int | None = option("--decoder-first-pipeline-num-layers", None, at_least=0)
    """Number of layers of the first stage; the rest is divided evenly."""
    decoder_last_pipeline_num_layers: int | None = option("--decoder-last-pipeline-num-layers", None, at_least=0)
    """Number of layers of the last stage; the rest is divided evenly."""
    standalone_embedding_stage: bool = option("--standalone-embedding-stage", False)
    """Give the embedding a pipeline stage of its own."""
    overlap_p2p_comm: bool = option("--no-overlap-p2p-communication", True)
    """Send to the next stage while computing."""
    variable_seq_lengths: bool = option("--variable-seq-lengths", False)
    """Let micro-batches differ in length, so that stages tell each other the shape."""
    account_for_embedding_in_pipeline_split: bool = option("--account-for-embedding-in-pipeline-split", False)
    """Count the embedding as a layer when layers are divided."""
    account_for_loss_in_pipeline_split: bool = option("--account-for-loss-in-pipeline-split", False)
    """Count the output layer as a layer when layers are divided."""
    rank_order: str = option("--use-tp-pp-dp-mapping", RANK_ORDERS[0], choices=RANK_ORDERS)
    """Order of the axes of the rank grid: the first named varies fastest over ranks."""
    pipeline_schedule: str | None = option("--pipeline-schedule", None, choices=tuple(GENERATORS))
    """Name of the pipeline's schedule; 1f1b, or interleaved with virtual stages, if not given."""

    device_target: str | None = option("--device-target", None, choices=("CPU", "Ascend"))
    """The kind of device a process computes on. If not given: what the script set in MindSpore's context, else an
    Ascend if there is one, else the CPU."""
    kernels: str | None = option("--kernels", None, choices=("host", "ops"))
    """Operators in numpy (`host`) or MindSpore (`ops`); `host` on a CPU and `ops` on Ascend if not given."""
    collectives: str | None = option("--collectives", None, choices=("shared_memory", "native"))
    """Transport between processes; `shared_memory` on a CPU and `native` on Ascend if not given."""
    threads: int | None = option("--threads", None, at_least=1)
    """Number of threads of one process on a CPU; if not given, its share of the host's cores."""
    distributed_timeout_minutes: float = option("--distributed-timeout-minutes", 10.0, above=0)
    """Minutes for which a rank waits for another before it names it and gives up."""
    recompute_config: RecomputeConfig = sibling(shows=STAGE_NAMES)
    """The section of recompute, set by `AllConfig`."""
    fused: FusedOperators = field(default=NOTHING_FUSED, repr=False, compare=False)
    """Operators that the model is to compute in fused form, set by `AllConfig`: the device is prepared with them."""
    found_device: str | None = field(default=None, repr=False, compare=False)
    """The device that a process found where none was asked for, set when it is prepared."""
    all_config: Any = field(default=None, repr=False, compare=False)
    """The configuration that this section is of, set by `AllConfig`: a job is initialised with this section."""

    @property
    def chunks(self) -> int:
        """The number of model chunks on each stage: 1 without virtual stages."""
        return self.virtual_pipeline_model_parallel_size or 1

    @property
    def model_parallel_size(self) -> int:
        """The number of ranks that compute one sequence together: tp x cp x pp."""
        return model_parallel_size(self)

    @property
    def model_parallel(self) -> int:
        """The tensor-parallel size; the name is MindFormers'."""
        return self.tensor_model_parallel_size

    @property
    def expert_parallel(self) -> int:
        """The expert-parallel size; the name is MindFormers'."""
        return self.expert_model_parallel_size

    @property
    def is_on_cpu(self) -> bool:
        """Whether a process computes on a CPU: by the device that was found or asked for; without either, if
        the host has no Ascend and MS_SIMULATION_LEVEL is not set."""
        return is_on_cpu(self.found_device or self.device_target)

    @property
    def drops_outputs(self) -> bool:
        """Whether layers may drop outputs of norms and activations, and compute them again in the backward, without
        being asked: `drops_outputs_on_cpu`, if the device that was found, else asked for, is a CPU."""
        return (self.found_device or self.device_target) == "CPU" and self.drops_outputs_on_cpu

    @property
    def drops_outputs_on_cpu(self) -> bool:
        """Whether layers on a CPU may drop outputs of norms and activations, and compute them again in the backward:
        with the operators that are the default there, unless the schedule puts weight gradients off, which would hold
        the outputs until then. False with --device-target Ascend."""
        return self.device_target != "Ascend" and self.kernels != "ops" and self.schedule_name not in SPLIT

    @property
    def schedule_name(self) -> str:
        """Name of the pipeline schedule: `pipeline_schedule` or, if that is None, "interleaved" with several chunks on
        a stage and "1f1b" with one."""
        if self.pipeline_schedule is not None:
            return self.pipeline_schedule
        return "interleaved" if self.chunks > 1 else "1f1b"

    @property
    def placement(self) -> Placement:
        """The placement of the model's chunks on stages."""
        return Placement(self.pipeline_model_parallel_size, self.chunks, self.schedule_name in FOLDED)

    @property
    def num_distributed_optimizer_instances(self) -> int:
        """Copies of the distributed optimizer's state, as the training section says; 1 if this section stands alone,
        outside of an `AllConfig`."""
        whole = self.all_config
        return 1 if whole is None else whole.training_config.gradient.num_distributed_optimizer_instances

    def derive(self) -> None:
        self.fill("data_parallel_size", lambda: max(1, self.world_size // self.model_parallel_size))
        if self.tensor_model_parallel_size == 1:
            self.sequence_parallel = False

    def rules(self) -> Iterator[Finding]:
        yield from model_copies_are_whole(self)
        copies = self.world_size // self.model_parallel_size
        if copies and self.data_parallel_size != copies:
            rule = f"the other sizes leave {copies} copies of the {self.world_size} processes"
            yield Finding("--data-parallel-size", self.data_parallel_size, rule, "leave it out")


ModelParallelConfig = ParallelConfig
