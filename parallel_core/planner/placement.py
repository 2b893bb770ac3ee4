"""Groups of ranks on nodes: how many members a group has, and how many of them share a node."""

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache

from parallel_core.config import ParallelConfig
from parallel_core.topology import KINDS, Topology


def topology_of(parallel: ParallelConfig) -> Topology:
    """The rank grid of a configuration."""
    return Topology(
        world_size=parallel.world_size,
        tensor_model_parallel_size=parallel.tensor_model_parallel_size,
        context_parallel_size=parallel.context_parallel_size,
        expert_model_parallel_size=parallel.expert_model_parallel_size,
        pipeline_model_parallel_size=parallel.pipeline_model_parallel_size,
        expert_tensor_parallel_size=parallel.expert_tensor_parallel_size,
        context_parallel_algo=parallel.context_parallel_algo,
        ulysses_degree_in_cp=parallel.ulysses_degree_in_cp,
        num_distributed_optimizer_instances=parallel.all_config.training_config.gradient.num_distributed_optimizer_instances,
        order=parallel.rank_order,
    )


@dataclass(frozen=True, eq=False)
class Placement:
    """A job's groups, ranks filling node after node."""

    topology: Topology
    devices_per_node: int

    @lru_cache  # noqa: B019 - a placement lives as long as its plan
    def group(self, kind: str) -> tuple[int, int]:
        """Members of rank 0's group of a kind, and the most of them on one node."""
        if kind == "pp":
            stages, world = self.topology.pipeline_model_parallel_size, self.topology.world_size
            stride = self.topology.group("pp", 0)[1] if stages > 1 else world
            return stages, 2 if stride < self.devices_per_node else 1
        members = range(self.topology.world_size) if kind not in KINDS else self.topology.group(kind, 0)
        nodes = Counter(rank // self.devices_per_node for rank in members)
        return len(members), max(nodes.values())
