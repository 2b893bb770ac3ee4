"""Which stage owns which layers."""

import pytest

from parallel_core.partition import layer_ranges, layers_per_stage


def test_layers_left_over_go_to_the_last_stage_but_one_first():
    """The stages with the embedding and the output layer stay light."""
    assert layers_per_stage(10, 4) == [2, 3, 3, 2]
    assert layers_per_stage(11, 4) == [3, 3, 3, 2]
    assert layers_per_stage(3, 2) == [2, 1]
    assert layer_ranges(6, 2, [2, 4]) == [range(0, 2), range(2, 6)]


@pytest.mark.parametrize("layers, stages, given", [(6, 2, [3, 4]), (6, 2, [6]), (6, 2, [6, 0]), (1, 2, None)])
def test_bad_partitions_are_refused(layers, stages, given):
    """The message names the flag."""
    with pytest.raises(ValueError, match="--num-layer"):
        layers_per_stage(layers, stages, given)
