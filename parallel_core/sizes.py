"""Rules between the sizes of a job, as findings."""

from collections.abc import Iterator
from typing import Protocol

from parallel_core.findings import Finding

RING, ULYSSES, HYBRID = "megatron_cp_algo", "ulysses_cp_algo", "hybrid_cp_algo"
CONTEXT_PARALLEL_ALGORITHMS = (RING, ULYSSES, HYBRID)
"""Values of --context-parallel-algo: ring attention, Ulysses' all-to-all over heads, and Ulysses inside of a ring."""

RANK_ORDERS = ("tp-cp-ep-dp-pp", "tp-cp-ep-pp-dp")
"""Orders of the rank grid's axes, the fastest varying first: Megatron's, and that of --use-tp-pp-dp-mapping."""


class Sizes(Protocol):
    """The sizes of a job, and how it lays out its ranks, as the config's parallel section and the topology name
    them."""

    @property
    def world_size(self) -> int: ...
    @property
    def tensor_model_parallel_size(self) -> int: ...
    @property
    def context_parallel_size(self) -> int: ...
    @property
    def pipeline_model_parallel_size(self) -> int: ...
    @property
    def expert_model_parallel_size(self) -> int: ...
    @property
    def expert_tensor_parallel_size(self) -> int | None: ...
    @property
    def context_parallel_algo(self) -> str | None: ...
    @property
    def ulysses_degree_in_cp(self) -> int | None: ...
    @property
    def num_distributed_optimizer_instances(self) -> int: ...
    @property
    def rank_order(self) -> str: ...


def model_parallel_size(sizes: Sizes) -> int:
    """The number of ranks that compute one sequence together: tp x cp x pp."""
    return sizes.tensor_model_parallel_size * sizes.context_parallel_size * sizes.pipeline_model_parallel_size


def expert_parallel_size(sizes: Sizes) -> int:
    """The number of ranks that hold one copy of the experts: expert tp (tp if None) x ep x pp."""
    tensor = sizes.expert_tensor_parallel_size or sizes.tensor_model_parallel_size
    return tensor * sizes.expert_model_parallel_size * sizes.pipeline_model_parallel_size


def model_copies_are_whole(sizes: Sizes) -> Iterator[Finding]:
    ranks = model_parallel_size(sizes)
    if sizes.world_size % ranks:
        others = f"--pipeline-model-parallel-size {sizes.pipeline_model_parallel_size} and --context-parallel-size"
        product = f"{others} {sizes.context_parallel_size} = {ranks}"
        rule = f"times {product}, which must divide the {sizes.world_size} processes"
        fix = f"start a multiple of {ranks} processes (for explain and plan: --world-size), or lower one of these sizes"
        yield Finding("--tensor-model-parallel-size", sizes.tensor_model_parallel_size, rule, fix)


def expert_copies_are_whole(sizes: Sizes) -> Iterator[Finding]:
    """A finding unless the ranks divide into whole copies of the experts. With --use-tp-pp-dp-mapping and several
    stages there must also be as many copies of the experts as data-parallel replicas (world size / (tp x cp x pp)):
    otherwise their pipelines differ."""
    ranks, tensor = expert_parallel_size(sizes), sizes.expert_tensor_parallel_size or sizes.tensor_model_parallel_size
    if sizes.world_size % ranks:
        others = f"--expert-tensor-parallel-size {tensor} and --pipeline-model-parallel-size"
        product = f"{others} {sizes.pipeline_model_parallel_size} = {ranks}"
        rule = f"times {product}, which must divide the {sizes.world_size} processes"
        yield Finding("--expert-model-parallel-size", sizes.expert_model_parallel_size, rule, "lower one of them")
        return
    of_experts, of_layers = sizes.world_size // ranks, sizes.world_size // model_parallel_size(sizes)
    same_pipelines = sizes.rank_order.endswith("pp") or sizes.pipeline_model_parallel_size == 1
    if not same_pipelines and of_experts != of_layers:
        yield Finding(
            "--use-tp-pp-dp-mapping",
            None,
            f"with stages before data-parallel copies, the {of_experts} copies of an expert must be as many as the "
            f"{of_layers} of the other layers, or their pipelines differ",
            "use --expert-model-parallel-size 1 or leave it out",
        )


def instances_share_the_replicas(sizes: Sizes) -> Iterator[Finding]:
    count = sizes.num_distributed_optimizer_instances
    replicas = sizes.world_size // (sizes.tensor_model_parallel_size * sizes.pipeline_model_parallel_size)
    of_experts = sizes.world_size // expert_parallel_size(sizes)
    if replicas % count or of_experts % count:
        which = f"{replicas} ranks that hold the same parameters" if replicas % count else f"{of_experts} of an expert"
        yield Finding("--num-distributed-optimizer-instances", count, f"must divide the {which}", "change it")


def ulysses_degree_divides(sizes: Sizes) -> Iterator[Finding]:
    degree, size = sizes.ulysses_degree_in_cp, sizes.context_parallel_size
    if sizes.context_parallel_algo != HYBRID or size == 1:
        return
    if degree is None:
        yield Finding("--context-parallel-algo", HYBRID, "needs --ulysses-degree-in-cp", "add it")
    elif size % degree:
        yield Finding("--ulysses-degree-in-cp", degree, f"must divide --context-parallel-size {size}", "change it")


def ulysses_degree_is_read(sizes: Sizes) -> Iterator[Finding]:
    """A finding if --ulysses-degree-in-cp is given and context parallelism (of two ranks or more) is a plain ring, also
    by default, which does not read it. There is none for plain Ulysses, although it does not read it either."""
    degree = sizes.ulysses_degree_in_cp
    if sizes.context_parallel_size > 1 and degree is not None and sizes.context_parallel_algo in (None, RING):
        fix = f"add --context-parallel-algo {HYBRID} or leave this out"
        yield Finding("--ulysses-degree-in-cp", degree, f"{RING} has no such degree", fix)
