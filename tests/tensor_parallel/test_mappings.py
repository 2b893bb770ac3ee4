"""Collectives in conjugate pairs, and the layers between them, on two ranks against the whole."""

import mindspore as ms
import numpy as np
import pytest

from tests.distributed import run
from tests.engine import TINY, config_of, job

TP2 = f"{TINY} --tensor-model-parallel-size 2"


def apply(backend, name: str, x: np.ndarray, dy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """y and dx of a mapping on this rank's x and dy."""
    from pynative import autograd, parallel_state, tensor_parallel

    with job(backend, config_of(TP2, 2)):
        mapping = getattr(tensor_parallel, f"{name}_tensor_model_parallel_region")
        with autograd.recording():
            leaf = autograd.leaf(ms.Tensor(x[backend.rank]))
            y = mapping(leaf, parallel_state.get_tensor_model_parallel_group())
        autograd.backward([y], [ms.Tensor(dy[backend.rank])])
        return y.asnumpy(), autograd.take_gradient(leaf).asnumpy()


halves = [slice(0, 3), slice(3, 6)]
MAPPINGS = {
    "copy_to": (lambda x: x, lambda dy: [dy.sum(0)] * 2, 6, 6),
    "reduce_from": (lambda x: [x.sum(0)] * 2, lambda dy: dy, 6, 6),
    "scatter_to": (lambda x: [x[r][..., halves[r]] for r in (0, 1)], lambda dy: [np.concatenate(dy, -1)] * 2, 6, 3),
    "gather_from": (lambda x: [np.concatenate(x, -1)] * 2, lambda dy: [dy[r][..., halves[r]] for r in (0, 1)], 3, 6),
}


@pytest.mark.parametrize("name", MAPPINGS)
def test_forward_and_its_conjugate_backward(name):
    """Megatron's f and g and their two siblings."""
    forward, backward, width, out_width = MAPPINGS[name]
    generator = np.random.default_rng(1)
    x = generator.standard_normal((2, 4, width)).astype(np.float32)
    dy = generator.standard_normal((2, 4, out_width)).astype(np.float32)
    for rank, (y, dx) in enumerate(run(2, apply, name, x, dy)):
        np.testing.assert_allclose(y, forward(x)[rank], rtol=1e-6)
        np.testing.assert_allclose(dx, backward(dy)[rank], rtol=1e-6)


def linear(backend, kind: str, flags: str, options: dict, x: np.ndarray, w: np.ndarray, b: np.ndarray, dy: np.ndarray):
    """A linear layer's output, returned bias, and gradients of input, weight shard and bias shard."""
    from pynative import autograd, parallel_state, tensor_parallel
    from pynative.parameter import write_parameter

    config = config_of(flags, backend.world_size)
    with job(backend, config):
        rank, size = backend.rank, backend.world_size
        layer = getattr(tensor_parallel, kind)(6, 8, config=config.model_config, init_method="normal", **options)
        write_parameter(layer.weight, layer.weight.shard.cut(w, rank, size))
        if layer.bias is not None:
            write_parameter(layer.bias, layer.bias.shard.cut(b, rank, size))
        if kind == "RowParallelLinear" and options.get("input_is_parallel", True):
            x = np.split(x, size, -1)[rank]
        if kind == "ColumnParallelLinear" and not options.get("gather_output"):
            dy = np.split(dy, size, -1)[rank]
        with autograd.recording():
            leaf = autograd.leaf(ms.Tensor(x))
            y, returned = layer(leaf)
        autograd.backward([y], [ms.Tensor(np.ascontiguousarray(dy))])
        parallel_state.get_world_group().barrier()
        gradients = [autograd.take_gradient(t) for t in (leaf, layer.weight)]
        db = autograd.take_gradient(layer.bias) if layer.bias is not None and returned is None else None
        return [None if t is None else t.asnumpy() for t in (y, returned, *gradients, db)]


LINEARS = [
    ("ColumnParallelLinear", {"gather_output": True}),
    ("ColumnParallelLinear", {"skip_bias_add": True}),
    ("ColumnParallelLinear", {"bias": False}),
    ("RowParallelLinear", {"skip_bias_add": False}),
    ("RowParallelLinear", {"input_is_parallel": False}),
    ("RowParallelLinear", {"bias": False}),
]


@pytest.mark.parametrize(("kind", "options"), LINEARS)
def test_two_ranks_hold_the_pieces_of_one(kind, options):
    """Output, bias, and every gradient of a linear cut by columns or by rows."""
    generator = np.random.default_rng(2)
    x, dy = (generator.standard_normal((3, 2, n)).astype(np.float32) for n in (6, 8))
    w, b = generator.standard_normal((8, 6)).astype(np.float32), generator.standard_normal(8).astype(np.float32)
    (whole,) = run(1, linear, kind, TINY, options, x, w, b, dy)
    parts = run(2, linear, kind, TP2, options, x, w, b, dy)
    column = kind == "ColumnParallelLinear"

    def joined(i: int, axis: int | None) -> np.ndarray:
        return parts[0][i] if axis is None else np.concatenate([part[i] for part in parts], axis)

    cut_output = -1 if column and not options.get("gather_output") else None
    cut_input = -1 if not column and options.get("input_is_parallel", True) else None
    expected = [(0, cut_output), (2, cut_input), (3, 0 if column else 1)]
    for i, axis in expected:
        np.testing.assert_allclose(joined(i, axis), whole[i], rtol=1e-5, atol=1e-6)
    for i, axis in ((1, 0 if column else None), (4, 0 if column else None)):
        assert (whole[i] is None) == (parts[0][i] is None)
        if whole[i] is not None:
            np.testing.assert_allclose(joined(i, axis), whole[i], rtol=1e-5, atol=1e-6)


def losses(backend, flags: str, logits: np.ndarray, target: np.ndarray, dy: np.ndarray):
    """Losses and this rank's gradient of its logits."""
    from pynative import autograd
    from pynative.tensor_parallel import VocabParallelCrossEntropy

    with job(backend, config_of(flags, backend.world_size)):
        own = np.ascontiguousarray(np.split(logits, backend.world_size, -1)[backend.rank])
        with autograd.recording():
            leaf = autograd.leaf(ms.Tensor(own))
            loss = VocabParallelCrossEntropy()(leaf, ms.Tensor(target))
        autograd.backward([loss], [ms.Tensor(dy)])
        return loss.asnumpy(), autograd.take_gradient(leaf).asnumpy()


def test_cross_entropy_over_a_cut_vocabulary():
    """Against the definition in float64, with logits large enough to overflow without a maximum."""
    generator = np.random.default_rng(3)
    logits = (generator.standard_normal((3, 5, 8)) * 60).astype(np.float32)
    target, dy = generator.integers(0, 8, (3, 5)).astype(np.int32), generator.standard_normal((3, 5)).astype(np.float32)
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    probability = np.exp(shifted) / np.exp(shifted).sum(-1, keepdims=True)
    one_hot = np.eye(8)[target]
    loss = np.log(np.exp(shifted).sum(-1)) - (shifted * one_hot).sum(-1)
    for flags, world in ((TINY, 1), (TP2, 2)):
        results = run(world, losses, flags, logits, target, dy)
        for result in results:
            np.testing.assert_allclose(result[0], loss, rtol=1e-5, atol=1e-5)
        gradient = np.concatenate([result[1] for result in results], -1)
        np.testing.assert_allclose(gradient, (probability - one_hot) * dy[..., None], rtol=1e-5, atol=1e-6)


def refusals(backend) -> list[str]:
    """Messages of what the layers do not do."""
    from pynative import tensor_parallel

    messages = []
    with job(backend, config_of(TINY, 1)) as _:
        config = config_of(TINY, 1).model_config
        for make in (
            lambda: tensor_parallel.ColumnParallelLinear(4, 4, config=config, is_expert=True),
            lambda: tensor_parallel.RowParallelLinear(4, 4, config=config, transpose_b=False),
            lambda: tensor_parallel.VocabParallelEmbedding(8, 4, config=config, reduce_scatter_embeddings=True),
            lambda: tensor_parallel.ColumnParallelLinear(4, 4, config=config, init_method="nomal"),
            lambda: tensor_parallel.VocabParallelCrossEntropy()(ms.ops.ones((1, 1, 4)), None, label_smoothing=0.1),
        ):
            try:
                make()
            except ValueError as error:
                messages.append(str(error))
    return messages


def test_what_is_not_available_is_refused():
    """No argument is accepted and ignored."""
    (messages,) = run(1, refusals)
    words = ("is_expert", "transpose_b", "reduce_scatter", "nomal", "label_smoothing")
    assert all(word in message for word, message in zip(words, messages, strict=True))
