"""Collectives of tensor parallelism in conjugate pairs, and the parallel layers between them: two ranks against the
whole in numpy."""

import mindspore as ms
import numpy as np
import pytest

from tests.support.distributed import run
from tests.support.engine import TINY, config_of, job

TP2 = f"{TINY} --tensor-model-parallel-size 2"


def apply(backend, name: str, options: dict, x: np.ndarray, dy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(y, dx) of the mapping of that name on this rank's x and dy."""
    from pynative import parallel_state, tensor_parallel
    from pynative.tape import autograd

    with job(backend, config_of(TP2, 2)):
        mapping = getattr(tensor_parallel, name)
        with autograd.recording():
            leaf = autograd.leaf(ms.Tensor(x[backend.rank]))
            y = mapping(leaf, parallel_state.get_tensor_model_parallel_group(), **options)
        autograd.backward([y], [ms.Tensor(dy[backend.rank])])
        return y.asnumpy(), autograd.take_gradient(leaf).asnumpy()


def same(x):
    return x


def total(x):
    return [x.sum(0)] * 2


def joined(axis):
    return lambda x: [np.concatenate(x, axis)] * 2


def halves(axis):
    return lambda x: [np.split(x[rank], 2, axis)[rank] for rank in (0, 1)]


def halves_of_total(axis):
    return lambda x: np.split(x.sum(0), 2, axis)


# Name, options, y of all ranks from their x, dx of all ranks from their dy, shapes of x and y.
MAPPINGS = [
    ("copy_to_tensor_model_parallel_region", {}, same, total, (4, 6), (4, 6)),
    ("reduce_from_tensor_model_parallel_region", {}, total, same, (4, 6), (4, 6)),
    ("scatter_to_tensor_model_parallel_region", {}, halves(-1), joined(-1), (4, 6), (4, 3)),
    ("gather_from_tensor_model_parallel_region", {}, joined(-1), halves(-1), (4, 3), (4, 6)),
    ("scatter_to_sequence_parallel_region", {}, halves(0), joined(0), (4, 6), (2, 6)),
    ("gather_from_sequence_parallel_region", {}, joined(0), halves_of_total(0), (2, 6), (4, 6)),
    (
        "gather_from_sequence_parallel_region",
        {"tensor_parallel_output_grad": False},
        joined(0),
        halves(0),
        (2, 6),
        (4, 6),
    ),
    ("reduce_scatter_to_sequence_parallel_region", {}, halves_of_total(0), joined(0), (4, 6), (2, 6)),
    ("all_gather_last_dim_from_tensor_parallel_region", {}, joined(-1), halves_of_total(-1), (4, 3), (4, 6)),
    ("reduce_scatter_last_dim_to_tensor_parallel_region", {}, halves_of_total(-1), joined(-1), (4, 6), (4, 3)),
]


@pytest.mark.parametrize("mapping", MAPPINGS, ids=lambda m: "-".join([m[0], *m[1]]))
def test_forward_and_its_conjugate_backward(mapping):
    """Each mapping's forward and backward on two ranks equal the numpy functions of both ranks' arrays that MAPPINGS
    lists."""
    name, options, forward, backward, x_shape, y_shape = mapping
    generator = np.random.default_rng(1)
    x, dy = (generator.standard_normal((2, *shape)).astype(np.float32) for shape in (x_shape, y_shape))
    for rank, (y, dx) in enumerate(run(2, apply, name, options, x, dy)):
        np.testing.assert_allclose(y, forward(x)[rank], rtol=1e-6)
        np.testing.assert_allclose(dx, backward(dy)[rank], rtol=1e-6)


def cut_unevenly(backend) -> str:
    """The error text of scattering a sequence whose length two ranks cannot share."""
    from pynative import parallel_state, tensor_parallel

    with job(backend, config_of(TP2, 2)), pytest.raises(ValueError) as raised:
        group = parallel_state.get_tensor_model_parallel_group()
        tensor_parallel.scatter_to_sequence_parallel_region(ms.Tensor(np.ones((3, 2), np.float32)), group)
    return str(raised.value)


def test_a_sequence_that_does_not_divide_is_refused():
    """The error names shape, axis and number of ranks."""
    assert all("(3, 2): dimension 0 cannot be cut evenly over 2" in message for message in run(2, cut_unevenly))


def linear(backend, kind: str, flags: str, options: dict, x: np.ndarray, w: np.ndarray, b: np.ndarray, dy: np.ndarray):
    """(output, returned bias, gradients of input, weight shard and bias shard) of a column- or row-parallel linear on
    this rank."""
    from parallel_core.sharding import place
    from pynative import parallel_state, tensor_parallel
    from pynative.parameter import write_parameter
    from pynative.tape import autograd

    config = config_of(flags, backend.world_size)
    with job(backend, config):
        rank, size = backend.rank, backend.world_size
        layer = getattr(tensor_parallel, kind)(6, 8, config=config.model_config, init_method="normal", **options)
        coordinates = parallel_state.get_coordinates()
        write_parameter(layer.weight, place(layer.weight.meta.spec, coordinates).cut(w))
        if layer.bias is not None:
            write_parameter(layer.bias, place(layer.bias.meta.spec, coordinates).cut(b))
        sequence_parallel = config.parallel_config.sequence_parallel
        if kind == "RowParallelLinear":
            x = np.split(x, size, -1)[rank] if options.get("input_is_parallel", True) else x
            dy = np.split(dy, size, 0)[rank] if sequence_parallel else dy
        else:
            x = np.split(x, size, 0)[rank] if sequence_parallel else x
            dy = dy if options.get("gather_output") else np.split(dy, size, -1)[rank]
        with autograd.recording():
            leaf = autograd.leaf(ms.Tensor(np.ascontiguousarray(x)))
            y, returned = layer(leaf)
        autograd.backward([y], [ms.Tensor(np.ascontiguousarray(dy))])
        parallel_state.get_world_group().barrier()
        gradients = [autograd.take_gradient(t) for t in (leaf, layer.weight)]
        db = autograd.take_gradient(layer.bias) if layer.bias is not None and returned is None else None
        return [None if t is None else t.asnumpy() for t in (y, returned, *gradients, db)]


SP2 = f"{TP2} --sequence-parallel"
LINEARS = [
    ("ColumnParallelLinear", {"gather_output": True}, TP2),
    ("ColumnParallelLinear", {"skip_bias_add": True}, TP2),
    ("ColumnParallelLinear", {"bias": False}, TP2),
    ("RowParallelLinear", {"skip_bias_add": False}, TP2),
    ("RowParallelLinear", {"input_is_parallel": False}, TP2),
    ("RowParallelLinear", {"bias": False}, TP2),
    ("ColumnParallelLinear", {"gather_output": True}, SP2),
    ("ColumnParallelLinear", {"skip_bias_add": True}, SP2),
    ("ColumnParallelLinear", {"bias": False}, SP2),
    ("RowParallelLinear", {"skip_bias_add": False}, SP2),
    ("RowParallelLinear", {"bias": False}, SP2),
]


@pytest.mark.parametrize(("kind", "options", "flags"), LINEARS)
def test_two_ranks_hold_the_pieces_of_one(kind, options, flags):
    """Output, bias and every gradient of a linear cut by columns or rows, whose input or output outside is whole or cut
    along s, are the whole linear's."""
    generator = np.random.default_rng(2)
    x, dy = (generator.standard_normal((4, 2, n)).astype(np.float32) for n in (6, 8))
    w, b = generator.standard_normal((8, 6)).astype(np.float32), generator.standard_normal(8).astype(np.float32)
    (whole,) = run(1, linear, kind, TINY, options, x, w, b, dy)
    parts = run(2, linear, kind, flags, options, x, w, b, dy)
    column, sequence_parallel = kind == "ColumnParallelLinear", flags == SP2
    replicated_input = None if column or not options.get("input_is_parallel", True) else -1
    cut = {
        "y": (-1 if not options.get("gather_output") else None) if column else (0 if sequence_parallel else None),
        "returned bias": 0 if column else None,
        "dx": 0 if column and sequence_parallel else replicated_input,
        "dw": 0 if column else 1,
        "db": 0 if column else ("share" if sequence_parallel else None),
    }
    for i, (what, axis) in enumerate(cut.items()):
        assert (whole[i] is None) == (parts[0][i] is None)
        if whole[i] is not None:
            np.testing.assert_allclose(merged(parts, i, axis), whole[i], rtol=1e-5, atol=1e-6, err_msg=what)


def merged(parts: list, i: int, axis: int | str | None) -> np.ndarray:
    """The i-th results of both ranks as one array: concatenated along `axis`, added if it is "share", the first if it
    is None."""
    if axis == "share":
        return parts[0][i] + parts[1][i]
    return parts[0][i] if axis is None else np.concatenate([part[i] for part in parts], axis)


def order_of_work(backend, flags: str) -> list[str]:
    """Names of the products, collectives and waits in the backward of a column-parallel linear, in the order in which
    they are called."""
    from pynative import kernels, tensor_parallel
    from pynative.collectives import Group
    from pynative.collectives.engine import Work
    from pynative.tape import autograd

    events = []

    def noting(owner, name: str, label: str):
        original = getattr(owner, name)

        def wrapper(*args, **kwargs):
            events.append(label)
            return original(*args, **kwargs)

        patch.setattr(owner, name, wrapper)

    with job(backend, config_of(flags, 2)), pytest.MonkeyPatch.context() as patch:
        config = config_of(flags, 2).model_config
        layer = tensor_parallel.ColumnParallelLinear(6, 8, config=config)
        with autograd.recording():
            leaf = autograd.leaf(ms.Tensor(np.ones((4, 2, 6), np.float32)))
            y, _ = layer(leaf)
        for operation in ("all_reduce", "all_gather", "reduce_scatter"):
            noting(Group, operation, operation)
        for kernel in ("linear_input_gradient", "linear_weight_gradient"):
            noting(kernels, kernel, kernel)
        noting(Work, "wait", "wait")
        autograd.backward([y], [ms.Tensor(np.ones(y.shape, np.float32))])
    return events


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (TP2, ["linear_input_gradient", "all_reduce", "linear_weight_gradient", "wait"]),
        (
            SP2,
            ["all_gather", "linear_input_gradient", "wait", "reduce_scatter", "linear_weight_gradient", "wait"],
        ),
    ],
)
def test_weight_gradients_are_computed_while_the_inputs_gradient_travels(flags, expected):
    """The all-reduce (reduce-scatter) of the input's gradient starts before the weight gradient and is waited for after
    it; with sequence parallelism the input is gathered again."""
    assert run(2, order_of_work, flags)[0] == expected


def losses(backend, flags: str, logits: np.ndarray, target: np.ndarray, dy: np.ndarray):
    """(losses, gradient of this rank's columns of the logits) of the vocabulary-parallel cross entropy."""
    from pynative.tape import autograd
    from pynative.tensor_parallel import VocabParallelCrossEntropy

    with job(backend, config_of(flags, backend.world_size)):
        own = np.ascontiguousarray(np.split(logits, backend.world_size, -1)[backend.rank])
        with autograd.recording():
            leaf = autograd.leaf(ms.Tensor(own))
            loss = VocabParallelCrossEntropy()(leaf, ms.Tensor(target))
        autograd.backward([loss], [ms.Tensor(dy)])
        return loss.asnumpy(), autograd.take_gradient(leaf).asnumpy()


def test_cross_entropy_over_a_cut_vocabulary():
    """Losses and gradients on two ranks equal the definition in float64, for logits so large that exp overflows without
    a maximum."""
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


def of_whole_logits(backend, parallel_logits: bool) -> np.ndarray:
    """Losses by VocabParallelCrossEntropy of logits that each of two ranks has whole."""
    from pynative.tensor_parallel import VocabParallelCrossEntropy

    config = config_of(TP2, backend.world_size)
    logits = np.linspace(-1, 1, config.model_config.vocab_size, dtype=np.float32).reshape(1, 1, -1)
    with job(backend, config):
        loss = VocabParallelCrossEntropy(parallel_logits=parallel_logits)
        return loss(ms.Tensor(logits), ms.Tensor([[3]], ms.int32)).asnumpy()


def test_whole_logits_are_said_to_be():
    """With parallel_logits=False whole logits give the right loss; without, each rank would count all exponentials: an
    error, not a guess by shape."""
    logits = np.linspace(-1, 1, config_of(TP2, 2).model_config.vocab_size)
    for found in run(2, of_whole_logits, False):
        np.testing.assert_allclose(found, [[np.log(np.exp(logits).sum()) - logits[3]]], rtol=1e-5)
    with pytest.raises(ValueError, match="parallel_logits=False"):
        run(2, of_whole_logits, True)


REFUSED = [
    ("ColumnParallelLinear", {"is_expert": True}, TINY, "is_expert"),
    ("RowParallelLinear", {"transpose_b": False}, TINY, "transpose_b"),
    ("RowParallelLinear", {"tp_comm_buffer_name": "proj"}, TINY, "tp_comm_buffer_name"),
    ("ColumnParallelLinear", {"init_method": "nomal"}, TINY, "nomal"),
    ("ColumnParallelLinear", {"gather_outputs": True}, TINY, "no argument 'gather_outputs'"),
    ("RowParallelLinear", {"input_is_parallel": False}, SP2, "--sequence-parallel"),
    ("ColumnParallelLinear", {"disable_grad_reduce": True}, SP2, "--sequence-parallel"),
    ("ColumnParallelLinear", {"gather_output": True, "stride": 2}, TP2, "gather_output=True with fused parts"),
    ("RowParallelLinear", {"input_is_parallel": False, "stride": 2}, TP2, "input_is_parallel=False with fused parts"),
]


def refusal(backend, kind: str, options: dict, flags: str) -> str:
    """The text of the error that constructing this parallel layer with these options raises."""
    from pynative import tensor_parallel

    config = config_of(flags, backend.world_size)
    with job(backend, config), pytest.raises((ValueError, TypeError)) as raised:
        getattr(tensor_parallel, kind)(4, 4, config=config.model_config, **options)
    return str(raised.value)


@pytest.mark.parametrize(("kind", "options", "flags", "word"), REFUSED)
def test_what_is_not_available_is_refused(kind, options, flags, word):
    """Each option of Megatron's layers that is not available raises an error that names it, instead of being
    ignored."""
    assert all(word in message for message in run(1 if flags == TINY else 2, refusal, kind, options, flags))


def test_label_smoothing_is_refused():
    """Cross entropy with label_smoothing, its only argument that is not available, raises."""
    from pynative.tensor_parallel import VocabParallelCrossEntropy

    with pytest.raises(ValueError, match="label_smoothing"):
        VocabParallelCrossEntropy()(ms.Tensor(np.ones((1, 1, 4), np.float32)), None, label_smoothing=0.1)
