"""MoELayer: grouped experts equal sequential ones, any layout one rank, with experts that get no tokens or
all of them."""

from contextlib import ExitStack
from unittest.mock import patch

import mindspore
import numpy as np
import pytest

from tests.support.distributed import run
from tests.support.engine import TINY, config_of, job
from tests.support.kernels import assert_close, normal

EXPERTS = (
    f"{TINY} --num-experts 4 --moe-router-topk 2 --moe-token-dispatcher-type alltoall "
    "--untie-embeddings-and-output-weights"
)
TOKENS = normal(8, 4, 32)
"""Hidden states [s, b, h] of all data-parallel ranks, divided along b."""
FAVOURED = np.linspace(1, 4, 32, dtype=np.float32)


def through(backend, flags: str, favourite: bool = False) -> dict[str, np.ndarray]:
    """A MoELayer's "output", gradient of the "input", and gradients by parameter name on this rank's part of TOKENS;
    favourite: all tokens choose experts 2 and 3."""
    from pynative.moe.moe_layer import MoELayer
    from pynative.parameter import initialize_parameters, name_parameters, write_parameter
    from pynative.tape.autograd import backward, leaf, recording, take_gradient

    config = config_of(flags, backend.world_size)
    with job(backend, config):
        layer = MoELayer(config.model_config).set_train()
        initialize_parameters(layer, 1)
        for parameter in name_parameters(layer):
            parameter.requires_grad_()
        own, among = _part(config, backend.rank)
        tokens = np.array_split(TOKENS, among, axis=1)[own]
        if favourite:
            tokens = FAVOURED + 0.01 * tokens
            router = np.zeros((4, 32), np.float32)
            router[2], router[3] = 0.1, 0.05
            write_parameter(layer.router.weight, router)
        x = leaf(mindspore.Tensor.from_numpy(np.ascontiguousarray(tokens)))
        with recording():
            output, bias = layer(x * 1.0)
        assert bias is None
        backward([output], [mindspore.Tensor.from_numpy(np.ascontiguousarray(np.cos(tokens)))])
        gradients = {p.meta.spec.name: take_gradient(p) for p in name_parameters(layer)}
        found = {"output": output, "input": take_gradient(x), **gradients}
        return {name: value.asnumpy().copy() for name, value in found.items() if value is not None}


def _part(config, rank: int) -> tuple[int, int]:
    """(number of this rank's part of TOKENS, number of parts), one for each data-parallel rank."""
    tensor = config.parallel_config.tensor_model_parallel_size
    return rank // tensor, config.parallel_config.data_parallel_size


FORMS = {
    "swiglu": "--swiglu --disable-bias-linear --moe-ffn-hidden-size 24",
    "biases": "",
    "shared, gate": "--swiglu --moe-shared-expert-intermediate-size 16 --moe-shared-expert-gate",
}


@pytest.mark.parametrize(("world", "favourite"), [(1, False), (2, False), (2, True)])
@pytest.mark.parametrize("form", FORMS)
def test_grouped_is_sequential_exactly(form, world, favourite):
    """Grouped experts give the sequential ones' results and gradients, also where all tokens go to two experts of one
    rank."""
    flags = f"{EXPERTS} {FORMS[form]} --expert-model-parallel-size {world}"
    sequential, grouped = (run(world, through, f"{flags} {option}", favourite) for option in ("", "--moe-grouped-gemm"))
    for one, other in zip(sequential, grouped, strict=True):
        assert one.keys() == other.keys() and len(one) > 6
        for name, value in one.items():
            np.testing.assert_array_equal(value, other[name], err_msg=name)


def seen(backend, flags: str) -> tuple[dict[str, np.ndarray], list[tuple[int, ...]]]:
    """(`through` with all tokens on two experts, rows of each expert in each grouped product)."""
    from pynative.moe import experts

    counts: list[tuple[int, ...]] = []
    grouped = experts.grouped_linear

    def noted(x, weights, rows, *products):
        counts.append(tuple(rows))
        return grouped(x, weights, rows, *products)

    with patch.object(experts, "grouped_linear", noted):
        return through(backend, flags, favourite=True), counts


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("form", FORMS)
def test_a_row_of_zeros_for_experts_without_tokens_changes_no_bit(form, world):
    """enable_gmm_safe_tokens: every grouped product has rows for each expert, even on a rank without tokens, and
    results and gradients stay the same bits."""
    flags = f"{EXPERTS} {FORMS[form]} --moe-grouped-gemm --expert-model-parallel-size {world}"
    without, filled = (run(world, seen, f"{flags} {option}") for option in ("", "--enable-gmm-safe-tokens"))
    assert all(0 in rows for rows in without[0][1])
    for (plain, few), (safe, all_of_them) in zip(without, filled, strict=True):
        assert len(few) == len(all_of_them) == 2
        assert all_of_them == [tuple(max(count, 1) for count in rows) for rows in few]
        assert plain.keys() == safe.keys() and len(plain) > 6
        for name, value in plain.items():
            np.testing.assert_array_equal(value, safe[name], err_msg=name)


LAYOUTS = {
    "ep2": (2, "--expert-model-parallel-size 2"),
    "ep2 grouped": (2, "--expert-model-parallel-size 2 --moe-grouped-gemm"),
    "ep2 etp2": (4, "--expert-model-parallel-size 2 --expert-tensor-parallel-size 2"),
    "dp2": (2, ""),
}


@pytest.mark.parametrize(("layout", "form"), [(layout, "biases") for layout in LAYOUTS] + [("ep2", "shared, gate")])
def test_any_layout_computes_what_one_rank_does(layout, form):
    """Output and every gradient: of an expert from its rank, of other parameters summed over replicas."""
    world, options = LAYOUTS[layout]
    (whole,) = run(1, through, f"{EXPERTS} {FORMS[form]}")
    parts = run(world, through, f"{EXPERTS} {FORMS[form]} {options}")
    for name in ("output", "input"):
        assert_close(np.concatenate([part[name] for part in parts], axis=1), whole[name], 1e-5)
    for name in whole.keys() - {"output", "input"}:
        shards = [part[name] for part in parts if name in part]
        if shards[0].shape == whole[name].shape:
            assert_close(sum(shards), whole[name], 1e-5 * np.abs(whole[name]).max())
        else:
            axis = next(i for i, (a, b) in enumerate(zip(shards[0].shape, whole[name].shape, strict=True)) if a != b)
            assert_close(np.concatenate(shards[:2], axis=axis), whole[name], 1e-5 * np.abs(whole[name]).max())


def traced(backend, flags: str) -> tuple[dict[str, np.ndarray], list[str]]:
    """(`through`, the first four of "send", "shared", "come" in the order in which they happened)."""
    from pynative.moe.moe_layer import SharedExperts
    from pynative.moe.token_dispatcher import AllToAllRoute

    order: list[str] = []

    def noted(name, real):
        def call(*arguments, **settings):
            order.append(name)
            return real(*arguments, **settings)

        return call

    places = (
        (AllToAllRoute, "start", "send"), (SharedExperts, "construct", "shared"), (AllToAllRoute, "_sorted", "come")
    )  # fmt: skip
    with ExitStack() as stack:
        for owner, name, what in places:
            stack.enter_context(patch.object(owner, name, noted(what, getattr(owner, name))))
        return through(backend, flags), order[:4]


CUT = "--tensor-model-parallel-size 2 --sequence-parallel --expert-tensor-parallel-size 1"


@pytest.mark.parametrize("tp", ["", CUT])
def test_shared_experts_are_computed_while_tokens_travel(tp):
    """--moe-shared-expert-overlap: shared experts are computed between sending the tokens and waiting for them; results
    and gradients are the same bits."""
    flags = f"{EXPERTS} {FORMS['shared, gate']} --expert-model-parallel-size 2 {tp}"
    after, while_ = (run(2, traced, f"{flags} {option}") for option in ("", "--moe-shared-expert-overlap"))
    for (plain, order), (overlapped, other_order) in zip(after, while_, strict=True):
        assert order == ["shared", "send", "send", "come"] and other_order == ["send", "send", "shared", "come"]
        assert plain.keys() == overlapped.keys() and len(plain) > 10
        for name, value in plain.items():
            np.testing.assert_array_equal(value, overlapped[name], err_msg=name)


def by_scripts(backend, flags: str) -> tuple[np.ndarray, np.ndarray]:
    """(a MoELayer's output, the output of router, dispatcher and experts called one by one as a script of Megatron-Core
    does)."""
    from mindspore.ops import matmul

    from pynative.moe.experts import GroupedMLP, SequentialMLP
    from pynative.moe.moe_layer import MoELayer
    from pynative.moe.moe_utils import topk_softmax_with_capacity
    from pynative.moe.token_dispatcher import MoEAlltoAllTokenDispatcher
    from pynative.parameter import initialize_parameters

    config = config_of(flags, backend.world_size)
    with job(backend, config):
        model = config.model_config
        layer = MoELayer(model, None, 1).set_train(False)
        initialize_parameters(layer, 1)
        own, among = _part(config, backend.rank)
        tokens = mindspore.Tensor.from_numpy(np.ascontiguousarray(np.array_split(TOKENS, among, axis=1)[own]))
        expected, _ = layer(tokens)
        logits = matmul(tokens.reshape(-1, 32), layer.router.weight.T)
        probs, routing_map, _ = topk_softmax_with_capacity(logits, 2)
        for ours, theirs in zip(layer.router(tokens).dense(4), (probs, routing_map), strict=True):
            np.testing.assert_allclose(ours.asnumpy(), theirs.asnumpy(), rtol=1e-6)
        first, count = backend.rank * 4 // backend.world_size, 4 // backend.world_size
        dispatcher = MoEAlltoAllTokenDispatcher(count, list(range(first, first + count)), model)
        rows, per_expert, weights = dispatcher.token_permutation(tokens, probs, routing_map)
        results = []
        for kind in (SequentialMLP, GroupedMLP):
            experts = kind(count, model)
            for mine, theirs in zip(experts.trainable_params(), layer.experts.trainable_params(), strict=True):
                mine.set_data(theirs)
            results.append(experts(rows, per_expert, weights))
        (output, bias), (grouped, _) = results
        np.testing.assert_array_equal(output.asnumpy(), grouped.asnumpy())
        back, bias = dispatcher.token_unpermutation(output, bias)
        assert bias is None
        for wrong in (lambda: SequentialMLP(3, model), lambda: MoEAlltoAllTokenDispatcher(count, [7] * count, model)):
            with pytest.raises(ValueError, match="num_local_experts"):
                wrong()
        with pytest.raises(ValueError, match="no token_permutation"):
            dispatcher.token_unpermutation(output)
        return expected.asnumpy().copy(), back.asnumpy().copy()


@pytest.mark.parametrize("world", [1, 2])
def test_parts_of_a_layer_are_called_as_megatrons(world):
    """Router, dispatcher and experts take Megatron's positional arguments, and together give the layer's output."""
    ep = f"--expert-model-parallel-size {world}"
    for layer, parts in run(world, by_scripts, f"{EXPERTS} {FORMS['swiglu']} {ep}"):
        assert_close(parts, layer, 1e-6)


@pytest.mark.parametrize("layout", ["ep2", "ep2 grouped"])
def test_all_tokens_to_the_experts_of_one_rank(layout):
    """The other rank, whose experts get no token, runs its part of the graph all the same; its experts' gradients are
    zero."""
    world, options = LAYOUTS[layout]
    (whole,) = run(1, through, f"{EXPERTS} {FORMS['swiglu']}", True)
    parts = run(world, through, f"{EXPERTS} {FORMS['swiglu']} {options}", True)
    assert_close(np.concatenate([part["output"] for part in parts], axis=1), whole["output"], 1e-5)
    for expert, has_tokens in enumerate((False, False, True, True)):
        for linear in ("linear_fc1", "linear_fc2"):
            name = f"experts.local_experts.{expert}.{linear}.weight"
            found = parts[expert // 2][name]
            assert found.any() == has_tokens
            assert_close(found, whole[name], 1e-5 * max(1.0, np.abs(whole[name]).max()))


def test_shared_experts_are_one_feed_forward_block_that_all_tokens_pass():
    """sigmoid(x g^T) (W2 relu(W1 x + b1)^2 + b2): with gate and biases."""
    flags = f"{EXPERTS} --moe-shared-expert-intermediate-size 16 --moe-shared-expert-gate --squared-relu"
    (found,) = run(1, shared_alone, flags)
    x, w = TOKENS.astype(np.float64), {name: value.astype(np.float64) for name, value in found.items()}
    hidden = np.maximum(x @ w["linear_fc1.weight"].T + w["linear_fc1.bias"], 0) ** 2
    output = hidden @ w["linear_fc2.weight"].T + w["linear_fc2.bias"]
    assert_close(found["output"], output / (1 + np.exp(-(x @ w["gate_weight"].T))), 1e-5)


def shared_alone(backend, flags: str) -> dict[str, np.ndarray]:
    """Weights by name, biases far from zero among them, and "output" for TOKENS of a SharedExperts cell alone."""
    from pynative.moe.moe_layer import SharedExperts
    from pynative.parameter import initialize_parameters, name_parameters, write_parameter

    config = config_of(flags, backend.world_size)
    with job(backend, config):
        cell = SharedExperts(config.model_config)
        initialize_parameters(cell, 1)
        for parameter in name_parameters(cell):
            if parameter.meta.spec.name.endswith("bias"):
                write_parameter(parameter, normal(*parameter.shape, seed=3))
        weights = {p.meta.spec.name: p.asnumpy().copy() for p in name_parameters(cell)}
        output, _ = cell(mindspore.Tensor.from_numpy(TOKENS.copy()))
        return {**weights, "output": output.asnumpy().copy()}
