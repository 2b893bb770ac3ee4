"""--fp8-simulate: a linear against numpy, by both kinds of kernels, and models that train with it."""

import numpy as np
import pytest

from parallel_core.numerics.float8 import E4M3, E5M2
from tests.parallel_core.numerics.test_float8 import nearest
from tests.support import layouts
from tests.support.distributed import run
from tests.support.engine import TINY, config_of, job
from tests.support.families import FAMILIES

ON = "--fp8-simulate --fp8-format hybrid --fp8-recipe"
RECIPES = ("tensorwise", "delayed", "blockwise", "mxfp8")


def rounded_by_blocks(x, rows, columns, scale_of, form):
    """x rounded to a float8 form in blocks of `rows` x `columns`, each scaled by its largest magnitude, and scaled
    back."""
    found = np.empty_like(x)
    for row in range(0, len(x), rows):
        for column in range(0, x.shape[1], columns):
            place = slice(row, row + rows), slice(column, column + columns)
            scale = scale_of(np.abs(x[place]).max(), form.largest)
            found[place] = nearest(np.clip(x[place] * scale, -form.largest, form.largest), form) / scale
    return found


SCALES = {
    "tensorwise": lambda amax, largest: np.float32(largest) / amax,
    "delayed": lambda amax, largest: np.float32(1),
    "blockwise": lambda amax, largest: np.float32(2.0 ** np.floor(np.log2(largest / amax))),
    "mxfp8": lambda amax, largest: np.float32(2.0 ** -np.ceil(np.log2(amax / largest))),
}
WHOLE = 1 << 20
BLOCKS = {"tensorwise": (WHOLE, WHOLE), "delayed": (WHOLE, WHOLE), "blockwise": (1, 128), "mxfp8": (1, 32)}


def expected(x, weight, dy, recipe):
    """(y, dx, dW) in numpy from operands that are rounded along the axis summed over, as the recipe says."""
    scale_of, (rows, columns) = SCALES[recipe], BLOCKS[recipe]

    def by(a, form, summed, square=False):
        block = (128, 128) if square else (rows, columns) if summed else (columns, rows)
        return rounded_by_blocks(a, *block, scale_of, form)

    square = recipe == "blockwise"
    return (
        by(x, E4M3, 1) @ by(weight, E4M3, 1, square).T,
        by(dy, E5M2, 1) @ by(weight, E4M3, 0, square),
        by(dy, E5M2, 0).T @ by(x, E4M3, 0),
    )


def products_of_a_linear(backend, recipe, kernels):
    """((x, weight, dy), [y, dx, dW of one linear, then those of grouped linears with 20, 0 and 28 of the rows])."""
    from mindspore import Tensor

    from parallel_core.numerics.float8_recipes import Recipe
    from pynative.tensor_parallel.products import grouped_products, products_of

    with job(backend, config_of(f"{TINY} --kernels {kernels}", 1)):
        draw = np.random.default_rng(3)
        shapes = (3, 16, 150), (40, 150), (3, 16, 40)
        x, weight, dy = (draw.standard_normal(shape).astype(np.float32) for shape in shapes)
        products = products_of(Recipe(recipe, "hybrid"), False)
        tensors = Tensor(x), Tensor(weight), Tensor(dy)
        found = [
            products.forward(*tensors[:2]),
            products.input_gradient(tensors[2], tensors[1]),
            products.weight_gradient(tensors[2], tensors[0]),
        ]
        flat, counts = [Tensor(a.reshape(48, -1)) for a in (x, dy)], [20, 0, 28]
        grouped = grouped_products([products_of(Recipe(recipe, "hybrid"), False) for _ in counts])
        weights = [tensors[1]] * 3
        found += [
            grouped.forward(flat[0], weights, counts),
            grouped.input_gradient(flat[1], weights, counts),
            *grouped.weight_gradients(flat[1], flat[0], counts, [None] * 3, [False] * 3),
        ]
        return (x.reshape(48, -1), weight, dy.reshape(48, -1)), [a.asnumpy() for a in found]


@pytest.mark.parametrize("recipe", RECIPES)
def test_products_are_those_of_rounded_operands(recipe):
    """Products equal numpy's of operands rounded block by block by a search of the formats' tables, with `host` and
    `ops` kernels."""
    for kernels in ("host", "ops"):
        ((x, weight, dy), found) = run(1, products_of_a_linear, recipe, kernels)[0]
        of_all, ends = expected(x, weight, dy, recipe), ((0, 20), (20, 48))
        parts = [expected(x[a:b], weight, dy[a:b], recipe) for a, b in ends]
        y, dx, *of_groups = found[3:]
        pairs = [
            *zip(found[:3], of_all, strict=True),
            (y, np.concatenate([part[0] for part in parts])),
            (dx, np.concatenate([part[1] for part in parts])),
            (of_groups[0], parts[0][2]),
            (of_groups[2], parts[1][2]),
        ]
        for got, want in pairs:
            assert np.abs(got.reshape(want.shape) - want).max() < 2e-6 * np.abs(want).max()
        assert not of_groups[1].any()
        exact = x @ weight.T
        assert np.abs(found[0].reshape(exact.shape) - exact).max() > 1e-3 * np.abs(exact).max()


DELAYED = f"{ON} delayed --fp8-amax-history-len 2 --fp8-amax-compute-algo max"
STEPS = "--train-iters 3 --lr-decay-iters 3 --global-batch-size 8"
TP2 = "--tensor-model-parallel-size 2 --sequence-parallel"
FULL = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"


def losses(backend, flags):
    return layouts.train(backend, flags).losses


@pytest.mark.parametrize(
    ("family", "layout"),
    [
        ("llama", f"{TP2} --use-distributed-optimizer"),
        ("experts", f"{TP2} --expert-model-parallel-size 2 --expert-tensor-parallel-size 1"),
    ],
)
def test_a_layout_equals_one_process(family, layout):
    """Scales follow whole inputs, delayed ones all ranks'. 8 bits change the first loss by more than 1e-3, a layout by
    less than 1e-4. In later steps values round to their other neighbour, as sums ran in another order: that changes a
    loss by up to 4.2e-4, measured between the products of two processor types in one process."""
    line = f"{TINY} {FAMILIES[family]} {STEPS}"
    (plain,), (alone,) = run(1, losses, line), run(1, losses, f"{line} {DELAYED}")
    for found in run(2, losses, f"{line} {DELAYED} {layout}"):
        assert np.allclose(found[0], alone[0], rtol=1e-4) and np.allclose(found, alone, rtol=1e-3)
    assert abs(alone[0] / plain[0] - 1) > 1e-3


def test_a_second_run_and_a_resumed_one_have_the_scales_of_the_first(tmp_path):
    """bfloat16 with delayed scaling: losses with full recompute, and of a run resumed after step 2, equal the plain
    run's to the bit."""
    line = f"{TINY} {FAMILIES['llama']} --bf16 {STEPS} {DELAYED}"
    (once,) = run(1, losses, f"{line} --save {tmp_path} --save-interval 2")
    assert run(1, losses, f"{line} {FULL}") == [once]
    assert run(1, losses, f"{line} --load {tmp_path} --ckpt-step 2") == [once[2:]]


def scales_of_ones_own_loop(backend, flags: str) -> list[list[float]]:
    """The scales of all operands, before and after each of two calls of a script's forward-backward function."""
    from pynative.training.forward_backward import get_forward_backward_func
    from pynative.training.training import get_model
    from pynative.transformer.gpt_model import GPTModel

    config, rows = config_of(flags, backend.world_size), layouts.Rows()
    samples = [rows[i] for i in range(4)]
    batch = {name: np.stack([sample[name] for sample in samples]) for name in samples[0]}
    with job(backend, config):
        model = get_model(lambda **stage: GPTModel(config.model_config, **stage), config)
        function = get_forward_backward_func(model, [], config.training_config, config.model_config)
        products = [getattr(cell, "products", None) for chunk in model for _, cell in chunk.cells_and_names()]
        scales = [scale for found in products for scale in getattr(found, "scales", {}).values()]
        seen = [[scale.scale for scale in scales]]
        for _ in range(2):
            function(**batch)
            seen.append([scale.scale for scale in scales])
    return seen


def test_a_loop_of_ones_own_has_delayed_scales():
    """A script's forward-backward function advances every delayed scale after its first call."""
    first, second, _ = run(1, scales_of_ones_own_loop, f"{TINY} --global-batch-size 4 {DELAYED}")[0]
    assert first and all(before == 1.0 != after for before, after in zip(first, second, strict=True))
