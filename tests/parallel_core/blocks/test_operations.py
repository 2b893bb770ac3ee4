"""The operations of a layer, which the planner times, beside its floating-point operations, which MFU counts."""

import pytest

from parallel_core.blocks import Layer, MicroBatch, blocks_within
from parallel_core.blocks.recurrence import Recurrence
from tests.support.engine import TINY, config_of
from tests.support.families import FAMILIES


@pytest.mark.parametrize("family", FAMILIES)
def test_operations_have_the_layers_flops(family):
    """The forwards of a layer's operations on one rank have as many FLOPs together as `forward_flops` says; where a
    layer has a recurrence, whose chunks multiply more than the formula needs, no fewer."""
    config = config_of(f"{TINY} --num-layers 2 {FAMILIES[family]}", 1).model_config
    micro_batch = MicroBatch.of(config)
    for number in range(2):
        layer = Layer.of(config, number)
        planned = sum(one.forward.flops for one in layer.operations(micro_batch))
        wanted = layer.forward_flops(micro_batch.tokens, config.seq_length)
        if any(blocks_within(layer, Recurrence)):
            assert wanted <= planned < 2 * wanted
        else:
            assert planned == pytest.approx(wanted, rel=1e-9)
