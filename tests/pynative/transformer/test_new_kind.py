"""A kind of layer that the sources know nothing of, registered here alone: a gated linear mixer in every other layer.

Of each token values and gates, v and g = in_proj(x); out_proj(sigmoid(g) x gain x the mean of all v up to the token).
Channels are cut over tensor parallelism, the gain with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest
from mindspore import Tensor, nn, ops

from parallel_core import blocks
from parallel_core.blocks.block import ParameterSpec
from parallel_core.costs import StagePlan, kept_bytes
from parallel_core.initial_values import Constant
from parallel_core.recompute.parts import Again, Part
from parallel_core.sharding import Cut, ShardSpec
from tests.support.distributed import run
from tests.support.engine import TINY, config_of
from tests.support.families import FAMILIES
from tests.support.layouts import STEPS, Trained, check_layout, train

if TYPE_CHECKING:
    from parallel_core.config import ModelConfig
    from pynative.transformer.kinds import LayerSettings

FLAGS = f"{TINY} --num-layers 4 --global-batch-size 8 {FAMILIES['llama']} --hidden-dropout 0.1"
RECOMPUTED = "--recompute-granularity selective --recompute-modules recurrence core_attn"
WHOLE = r"--select-recompute ['self_attention','mlp']"


@dataclass(frozen=True)
class GatedLinear(blocks.Sublayer):
    """The mixer's block: parameters, messages, operations and kept bytes follow from its linears, but for the gain."""

    in_proj: blocks.Linear
    out_proj: blocks.Linear

    collectives = ("in_proj", "out_proj")
    first_linears = ("in_proj",)  # type: ignore[assignment]

    @classmethod
    def of(cls, config: ModelConfig, number: int) -> GatedLinear:
        size = config.hidden_size
        into = blocks.Linear.column(config, size, 2 * size, bias=False, parts=2)
        return cls(into, blocks.Linear.row(config, size, bias=False))

    def parameters(self) -> dict[str, ParameterSpec]:
        spec = ShardSpec(shape=(self.out_proj.input_size,), cuts=(Cut(0),))
        return {**super().parameters(), "gain": ParameterSpec(spec, Constant(1.0), self.in_proj.dtype)}

    def parts(self) -> tuple[Part, ...]:
        return *super().parts(), Part("recurrence", Again.OUTPUT, feeds=("out_proj",), flag="recurrence")


def cell_of(block: GatedLinear, settings: LayerSettings) -> nn.Cell:
    """The mixer's cell."""
    from pynative import kernels
    from pynative.parameter import make_parameter
    from pynative.tensor_parallel import ColumnParallelLinear, RowParallelLinear
    from pynative.tensor_parallel.recompute import keep_collectives, run_part

    class GatedLinearMixer(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.recomputed = settings.recomputed
            self.in_proj = ColumnParallelLinear.of(block.in_proj, settings.config)
            self.out_proj = RowParallelLinear.of(block.out_proj, settings.config)
            self.gain = make_parameter(*block.parameters()["gain"])
            keep_collectives(self)

        def construct(self, hidden_states: Tensor, *masking: object) -> tuple[Tensor, Tensor | None]:
            rows, _ = self.in_proj(hidden_states)
            return self.out_proj(run_part(self, "recurrence", self._recurrence, rows))

        def _recurrence(self, rows: Tensor) -> Tensor:
            values, gates = kernels.split_features(rows, (rows.shape[-1] // 2,) * 2)
            count = Tensor.from_numpy(np.arange(1, len(rows) + 1, dtype=np.float32)[:, None, None])
            return ops.sigmoid(gates) * self.gain * (ops.cumsum(values, 0) / count)

    return GatedLinearMixer()


@contextmanager
def registered() -> Iterator[None]:
    """Within the context layers 0, 2, ... have the mixer."""
    kind = blocks.Kind("gated linear", GatedLinear.of, lambda config, number: number % 2 == 0)
    blocks.MIXERS.insert(0, kind)
    try:
        yield
    finally:
        blocks.MIXERS.remove(kind)


def trained(backend, flags: str) -> Trained:
    """Train a model with the mixer on this rank; losses, gradients, weights and states."""
    from pynative.transformer.kinds import CELLS

    CELLS[GatedLinear] = cell_of
    with registered():
        return train(backend, flags)


@pytest.mark.parametrize(
    ("world", "layout"),
    [
        (2, f"--tensor-model-parallel-size 2 --sequence-parallel {RECOMPUTED}"),
        (2, f"--tensor-model-parallel-size 2 {WHOLE} --no-mp-comm-recompute"),
        (2, f"--pipeline-model-parallel-size 2 {WHOLE}"),
    ],
    ids=["tp2 sp", "tp2", "pp2"],
)
def test_it_trains_as_one_process_does(world, layout):
    """Losses, gradients, updates and states under layouts, with parts of the mixer recomputed."""
    check_layout(FLAGS, world, layout, trained)


def test_recomputation_changes_no_bit_and_keeps_less():
    """--recompute-modules with the mixer's own part gives the same bits, and the plan counts fewer kept bytes."""
    plain, again = (run(1, trained, f"{FLAGS} {STEPS} {more}")[0] for more in ("", RECOMPUTED))
    assert plain.losses == again.losses and plain.digests == again.digests
    with registered():
        sizes = [sum(kept_bytes(StagePlan(config_of(f"{FLAGS} {more}", 1), 0))) for more in ("", RECOMPUTED)]
    assert sizes[1] < sizes[0]


def test_it_is_saved_and_loaded_at_another_layout(tmp_path):
    """The mixer's parameters, the cut gain included, pass through a checkpoint to another layout."""
    saved = run(
        2,
        trained,
        f"{FLAGS} {STEPS} --tensor-model-parallel-size 2 --save {tmp_path} --save-interval 2 --lr-decay-iters 3",
    )[0]
    loaded = run(1, trained, f"{FLAGS} {STEPS} --load {tmp_path} --train-iters 3 --lr-decay-iters 3")[0]
    names = {name for name in loaded.initial if "layers.2.self_attention" in name}
    assert {name.rpartition("self_attention.")[2] for name in names} == {"in_proj.weight", "out_proj.weight", "gain"}
    for name, array in saved.final.items():
        np.testing.assert_array_equal(loaded.initial[name], array)
