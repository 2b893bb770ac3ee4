"""16-bit weights and their float32 values in the training loop, under layouts."""

import numpy as np
import pytest

from tests.support.distributed import run
from tests.support.pretraining import BATCHES, pretrain_tiny

LAYOUTS = {
    "1 rank": (1, ""),
    "dp2": (2, ""),
    "tp2 sp": (2, "--tensor-model-parallel-size 2 --sequence-parallel"),
    "pp2": (2, "--pipeline-model-parallel-size 2"),
}
TYPES = {"bf16": "--bf16", "fp16": "--fp16 --initial-loss-scale 1024"}


def trained(backend, flags: str) -> tuple[set[str], np.ndarray, np.ndarray]:
    """(names of parameters that after any step were not their float32 values rounded, embedding, its float32
    values)."""
    import mindspore as ms

    from pynative.training.callbacks import Callback

    wrong = set()

    def is_rounded(parameter) -> bool:
        rounded = parameter.main_param.astype(parameter.dtype).astype(ms.float32)
        return np.array_equal(parameter.astype(ms.float32).asnumpy(), rounded.asnumpy())

    class InStep(Callback):
        def on_step_end(self, state):
            pairs = state.step_cell.buffers.entries
            wrong.update(entry.spec.name for entry, parameter in pairs if not is_rounded(parameter))

    state = pretrain_tiny(backend, f"{BATCHES} --train-iters 4 --lr 1e-2 {flags}", callbacks=[InStep()])
    (embedding,) = (p for e, p in state.step_cell.buffers.entries if e.spec.name.endswith("word_embeddings.weight"))
    return wrong, embedding.astype(ms.float32).asnumpy(), embedding.main_param.asnumpy().copy()


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_model_is_the_float32_values_rounded_after_every_step(layout, kind):
    """To the bit on every rank; a tied embedding, and its float32 values, are the same on both pipeline stages."""
    world, flags = LAYOUTS[layout]
    results = run(world, trained, f"{flags} {TYPES[kind]}")
    assert [wrong for wrong, *_ in results] == [set()] * world
    assert all(np.abs(main - model).max() > 0 for _, model, main in results), "float32 values that are 16-bit ones"
    if "tp2" not in layout:
        for _, model, main in results[1:]:
            np.testing.assert_array_equal(model, results[0][1])
            np.testing.assert_array_equal(main, results[0][2])
