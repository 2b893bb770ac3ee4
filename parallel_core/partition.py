"""Layers to pipeline chunks: which stage owns which layers."""

from collections.abc import Sequence


def layers_per_stage(num_layers: int, stages: int, num_layer_list: Sequence[int] | None = None) -> list[int]:
    """How many layers each stage owns.

    An even split; what is left over goes one layer at a time to the last stage but one and backwards from there, so
    that the stages that also hold the embedding and the output layer stay light.
    """
    if num_layer_list is not None:
        if len(num_layer_list) != stages or sum(num_layer_list) != num_layers or min(num_layer_list) < 1:
            raise ValueError(
                f"--num-layer-list {list(num_layer_list)}: needs {stages} entries of at least 1 "
                f"(--pipeline-model-parallel-size) that add up to --num-layers {num_layers}"
            )
        return list(num_layer_list)
    if num_layers < stages:
        raise ValueError(f"--num-layers {num_layers} is fewer than --pipeline-model-parallel-size {stages}")
    share, rest = divmod(num_layers, stages)
    counts = [share] * stages
    for i in range(rest):
        counts[(stages - 2 - i) % stages] += 1
    return counts


def layer_ranges(num_layers: int, stages: int, num_layer_list: Sequence[int] | None = None) -> list[range]:
    """The global layer numbers (0-based) of each stage."""
    ranges, start = [], 0
    for count in layers_per_stage(num_layers, stages, num_layer_list):
        ranges.append(range(start, start + count))
        start += count
    return ranges
