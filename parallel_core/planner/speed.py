"""The seconds that a device takes for operations, and its links for messages over a group of ranks."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import ceil, log2

from parallel_core.config import ParallelConfig
from parallel_core.messages import Message
from parallel_core.operations import ATTENTION, ELEMENTWISE, PRODUCTS, Operation, Work
from parallel_core.planner.device import Device
from parallel_core.topology import KINDS, Topology


def topology_of(parallel: ParallelConfig) -> Topology:
    """The rank grid and process groups of a configuration."""
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
    """The process groups of a job whose ranks fill node after node."""

    topology: Topology
    devices_per_node: int

    @lru_cache  # noqa: B019 - a placement lives as long as its plan
    def group(self, kind: str) -> tuple[int, int]:
        """(number of members of rank 0's group of a kind, the most of them on one node); for a kind that is no key of
        `KINDS` all ranks. For "pp" with several stages the second is not counted: 2 if the first two members are fewer
        ranks apart than a node has devices, else 1."""
        stages = self.topology.pipeline_model_parallel_size
        if kind == "pp" and stages > 1:
            return stages, 2 if self.topology.group("pp", 0)[1] < self.devices_per_node else 1
        members = range(self.topology.world_size) if kind not in KINDS else self.topology.group(kind, 0)
        nodes = Counter(rank // self.devices_per_node for rank in members)
        return len(members), max(nodes.values())


LAUNCHES, CAUSAL = "launches", 0.5
WIDE = ("output_layer", "router")
"""Names of linears whose products stay in the type of activations where the others' inputs have 8 bits (Transformer
Engine)."""
GROUPED = ".experts"
"""A part of the names of experts' products."""
SCORE_SWEEPS = {False: 4, True: 7}
"""Whether attention's scores have dropout -> the times that a pass without a fused operator reads or writes their
matrix: the product, softmax and its mask, and the second product; with dropout its reading, result and mask."""
MESSAGES = {
    "tp": "tensor parallel",
    "expert-tp": "tensor parallel",
    "tp-cp": "tensor parallel",
    "cp": "context parallel",
    "cp-ring": "context parallel",
    "cp-ulysses": "context parallel",
    "tp-ep": "expert parallel",
    "ep": "expert parallel",
    "pp": "pipeline",
}
"""Kind of group -> part of a step's time that its messages are; those of all other kinds are "data parallel"."""


ALL_MESSAGES = (*dict.fromkeys(MESSAGES.values()), "data parallel")
"""The parts of a step's time that are messages."""


def message_part(kind: str) -> str:
    """The part of a step's time to which messages over a kind of group belong, by `MESSAGES`; "data parallel" for a
    kind that is not there."""
    return MESSAGES.get(kind, ALL_MESSAGES[-1])


@dataclass(frozen=True)
class Speed:
    """The speed of a device that computes in `dtype`, of which a number has `item_size` bytes, and of messages between
    the ranks of a job on its nodes. writes_scores: whether attention writes its matrix of scores to memory;
    drops_scores: whether there is dropout on it; products_in: the narrower type of products' inputs, "": none;
    overlaps_tensor: whether tensor-parallel messages run beside the products that need or make them."""

    device: Device
    dtype: str
    placement: Placement
    writes_scores: bool
    drops_scores: bool
    item_size: int
    products_in: str = ""
    """The type of the inputs of products, if it is narrower than `dtype`."""
    overlaps_tensor: bool = False
    """Whether messages of tensor parallelism run beside the products that need or make them (--tp-comm-overlap)."""

    @cached_property
    def _rate(self) -> dict[str, float]:
        calibration, peak = self.device.calibration, self.device.peak(self.dtype)
        fused = calibration.products if self.writes_scores else calibration.attention / CAUSAL
        return {PRODUCTS: peak * calibration.products, ATTENTION: peak * fused, ELEMENTWISE: peak}

    @cached_property
    def _narrow_rate(self) -> float:
        """FLOP/s of products with inputs of the type `products_in`; 0 where there is none."""
        calibration, peaks = self.device.calibration, self.device.peak_flops
        share = calibration.narrow_products or calibration.products
        return peaks.get(self.products_in, 0.0) * share

    @property
    def hides(self) -> bool:
        """Whether messages that are posted move while the device computes; not where ranks share a node's cores
        (`Device.cores`), on which each moves its own. A pipeline's hidden states arrive meanwhile on every device."""
        return not self.device.cores

    @cached_property
    def bytes_per_second(self) -> float:
        """Bytes a second of the device's memory that elementwise operations reach."""
        return self.device.bandwidth * self.device.calibration.elementwise

    @cached_property
    def update_bytes_per_second(self) -> float:
        """Bytes a second of the device's memory that the optimizer's update reaches."""
        calibration = self.device.calibration
        return self.device.bandwidth * (calibration.update or calibration.elementwise)

    def seconds(self, operation: Operation, work: Work) -> float:
        """Seconds of one pass of an operation, without its launches: those of its arithmetic plus those of its bytes.
        Work that was measured on the device (`Device.by_size`) takes the measured multiple of the seconds of its
        arithmetic, or without any of its bytes, and those that its calls last beside their launches
        (`Device.launch_flops`); but not products at the device's peak for the type `products_in`.
        Experts' products take `Calibration.grouped` times as long."""
        is_grouped = operation.kind == PRODUCTS and GROUPED in operation.name
        return self._ungrouped(operation, work) * (self.device.calibration.grouped if is_grouped else 1.0)

    def _ungrouped(self, operation: Operation, work: Work) -> float:
        if operation.kind == PRODUCTS and self._narrow_rate and not any(name in operation.name for name in WIDE):
            saved = work.inputs * (1 - 1 / self.item_size)  # inputs of 8 bits take one byte each
            return work.flops / self._narrow_rate + (work.bytes - saved) / self.bytes_per_second
        arithmetic, traffic = work.flops / self._rate[operation.kind], work.bytes / self.bytes_per_second
        name, size = work.sized or ("", 0.0)
        points = self.device.by_size.get(name)
        if points is None:
            return arithmetic + traffic
        of_launches = work.launches * self.device.launch_flops.get(name, 0.0) / self._rate[operation.kind]
        return (arithmetic or traffic) * _at(points, size) + of_launches

    def pace(self, stages: float) -> float:
        """The multiple of its own speed that a rank has while all ranks of `stages` stages compute: below 1 where those
        on a node are more than its cores, else from `Calibration.alone` (one busy core) to 1 (all busy); 1 on a
        device without `Device.cores`."""
        cores, topology = self.device.cores, self.placement.topology
        if not cores:
            return 1.0
        on_node = min(topology.world_size, self.placement.devices_per_node)
        busy = max(1.0, stages * on_node / topology.pipeline_model_parallel_size)
        if busy >= cores:
            return cores / busy
        return 1 + (self.device.calibration.alone - 1) * (cores - busy) / (cores - 1)

    def waking(self, idle: float) -> float:
        """Seconds by which a rank's next pass takes longer after it has waited `idle` seconds; 0 where a node has more
        ranks than cores, which others then keep busy."""
        calibration = self.device.calibration
        if self.pace(self.placement.topology.pipeline_model_parallel_size) < 1:
            return 0.0
        return min(calibration.waking * idle, calibration.waking_most)

    def by_part(
        self, operations: Iterable[tuple[Operation, Work]], messages: dict[str, float], back: bool = False
    ) -> dict[str, float]:
        """Part -> seconds: kinds of operations (reads and writes of attention's scores, where it writes them, count as
        elementwise), `messages` (part -> exposed seconds) as given, and LAUNCHES: the seconds by which all launches
        last longer than the sum of the other parts (0: they do not); on a device that starts its operations itself
        (`Device.cores`) all launches' seconds. back: the operations are a backward's."""
        found, launches = dict.fromkeys((PRODUCTS, ATTENTION, ELEMENTWISE), 0.0), 0
        for operation, work in operations:
            found[operation.kind] += self.seconds(operation, work)
            launches += work.launches
            if self.writes_scores and operation.kind == ATTENTION and work.launches:
                passes = work.launches / operation.forward.launches  # 2 in the backward, with as many calls in each
                sweeps = SCORE_SWEEPS[self.drops_scores] * operation.scores * self.item_size
                found[ELEMENTWISE] += sweeps * passes / self.bytes_per_second
                launches += 4 * work.launches
        found |= messages
        started = launches * self.device.calibration.launch_of(back)
        return {**found, LAUNCHES: started if self.device.cores else max(0.0, started - sum(found.values()))}

    def meets(self, one: Message) -> bool:
        """Whether the message is a collective of two or more ranks, in which the fastest waits for the slowest."""
        return one.operation != "send" and self.placement.group(one.kind)[0] > 1

    def message(self, one: Message) -> float:
        """Seconds of all calls of a message: measured times where the device has them and rank 0's group is on one node
        (for a send: neighbours can share a node), else latencies of rounds, and bytes over the link that takes longest
        for them; 0 in a group of one."""
        members, per_node = self.placement.group(one.kind)
        if members < 2:
            return 0.0
        device, calibration = self.device, self.device.calibration
        is_send = one.operation == "send"
        inside = device.inside.bandwidth * calibration.inside_share
        if device.is_mesh:
            inside *= (1 if is_send else max(1, per_node - 1)) / max(1, device.devices_per_node - 1)
        between = device.between.bandwidth * calibration.between_share
        measured = device.messages.get(one.operation)
        if measured and (per_node > 1 if is_send else members <= per_node):
            more = 0 if is_send else ceil(log2(members)) - 1  # further rounds, each with the smallest message's time
            return one.calls * (more * measured[0][1] + interpolated(measured, one.bytes))
        if is_send:
            link, bandwidth = (device.inside, inside) if per_node > 1 else (device.between, between)
            return one.calls * (link.latency + one.bytes / bandwidth)
        rounds = ceil(log2(members)) * (2 if one.operation == "all_reduce" else 1)
        if members <= per_node:
            return one.calls * (rounds * device.inside.latency + one.bytes / inside)
        between *= max(1.0, members / per_node / 2) ** -calibration.congestion
        if one.operation == "all_to_all":
            away = one.bytes * (members - per_node) / max(1, members - 1)
            return one.calls * (rounds * device.between.latency + max(away / between, (one.bytes - away) / inside))
        return one.calls * (rounds * device.between.latency + one.bytes / min(inside, between * per_node))


def interpolated(points: Sequence[tuple[float, float]], size: float) -> float:
    """Seconds of a message of `size` bytes, from measured points (bytes, seconds) in order of the bytes: linear between
    two; a smaller one takes the smallest's time, a larger one follows the last two (a single point: in proportion)."""
    if size <= points[0][0] or len(points) == 1:
        return points[0][1] * max(1.0, size / points[0][0])
    after = next((number for number, (known, _) in enumerate(points) if known >= size), len(points) - 1)
    (low, fast), (high, slow) = points[after - 1], points[after]
    return fast + (slow - fast) * (size - low) / (high - low)


def _at(points: Sequence[tuple[float, float]], place: float) -> float:
    """The value at a place, linear between points (place, value) in order of the places; beyond them, the nearest
    one's."""
    if place <= points[0][0] or place >= points[-1][0]:
        return points[0][1] if place <= points[0][0] else points[-1][1]
    return interpolated(points, place)
