"""The router's choices, its losses and what it reports, on one rank and where ranks share a micro-batch's tokens."""

import numpy as np
import pytest

from parallel_core.moe import routing
from parallel_core.moe.routing import RoutingRule
from tests.support.distributed import run
from tests.support.engine import TINY, config_of, job

EXPERTS, SEQUENCE, BATCH = 6, 16, 2
HIDDEN = np.random.default_rng(1).standard_normal((SEQUENCE, BATCH, 32)).astype(np.float32)
WEIGHT = np.random.default_rng(2).standard_normal((EXPERTS, 32)).astype(np.float32) * 0.3
UPSTREAM = np.random.default_rng(3).standard_normal((SEQUENCE, BATCH, 2)).astype(np.float32)
ROUTER = f"{TINY} --num-experts {EXPERTS} --moe-router-topk 2 --disable-bias-linear"


def route(backend, flags: str) -> dict:
    """A router's "experts", "probs", "figures" and the weight's "gradient" summed over ranks, for this rank's "places"
    of HIDDEN, in a step of one micro-batch."""
    from mindspore import Tensor

    from parallel_core.numerics.averaging import Averaging
    from parallel_core.step_figures import figures_of
    from pynative import parallel_state
    from pynative.memory.in_place import assign
    from pynative.moe.router import TopKRouter
    from pynative.step_figures import StepFigures, collected
    from pynative.tape import autograd

    config = config_of(f"{ROUTER} {flags}", backend.world_size)
    with job(backend, config):
        router = TopKRouter(config.model_config, 1)
        router.set_train(True)
        assign(router.weight, Tensor(WEIGHT))
        length = SEQUENCE // config.parallel_config.context_parallel_size
        if router.outside.cuts_sequence:
            length //= backend.world_size
        places = np.concatenate([np.arange(r.start, r.stop) for r in router.outside.positions(length)])
        averaging = Averaging(per_token=False, micro_batches=1, replicas=1)
        figures = StepFigures(figures_of(config.model_config), averaging)
        hidden = autograd.leaf(Tensor(HIDDEN[places]))
        with autograd.recording(), collected(figures):
            found = router(hidden)
            autograd.backward([found.probs], [Tensor(UPSTREAM[places].reshape(-1, 2))])
        world = parallel_state.get_world_group()
        total = world.all_reduce(autograd.take_gradient(router.weight)).asnumpy()
        vector = world.all_reduce(Tensor(np.array(figures.vector(), np.float32))).asnumpy()
        return {
            "places": places,
            "probs": found.probs.asnumpy().reshape(-1, BATCH, 2),
            "experts": found.experts.asnumpy().reshape(-1, BATCH, 2),
            "gradient": total,
            "figures": figures.whole(vector.tolist()),
        }


LOSSES = {
    "none": "--moe-router-load-balancing-type none",
    "micro-batch, z": "--moe-aux-loss-coeff 0.5 --moe-z-loss-coeff 0.2",
    "sequences of sigmoids": (
        "--moe-router-load-balancing-type seq_aux_loss --moe-aux-loss-coeff 0.5 --moe-router-score-function sigmoid"
    ),
    "groups": (
        "--moe-router-num-groups 3 --moe-router-group-topk 2 --moe-router-pre-softmax --moe-aux-loss-coeff 0.3 "
        "--moe-device-level-aux-loss-coeff 0.5 --moe-comm-aux-loss-coeff 0.7"
    ),
    "global": "--moe-router-load-balancing-type global_aux_loss --moe-aux-loss-coeff 0.5",
}


def loss_of(logits: np.ndarray, flags: str, experts: np.ndarray) -> float:
    """The sum of the balancing losses in float64, from the papers' formulas: loads by loops, means over tokens."""
    moe = config_of(f"{ROUTER} {flags}", 1).moe_config
    rule, total = RoutingRule.of(moe), 0.0
    scores = routing.normalized_scores(logits, rule).reshape(SEQUENCE, BATCH, EXPERTS)
    best = np.argsort(-scores, axis=-1)[..., : rule.topk]
    share = np.stack([(best == e).any(axis=-1) for e in range(EXPERTS)], axis=-1) / rule.topk
    for kind, coefficient in moe.balancing_losses.items():
        axes = 0 if kind == "seq_aux_loss" else (0, 1)
        total += coefficient * EXPERTS * np.mean(np.sum(share.mean(axis=axes) * scores.mean(axis=axes), axis=-1))
    of_groups = scores.mean(axis=(0, 1)).reshape(3, 2).sum(axis=-1)
    real = np.stack([(experts == e).any(axis=-1) for e in range(EXPERTS)], axis=-1).reshape(-1, 3, 2)
    total += moe.moe_device_level_aux_loss_coeff * np.sum(of_groups * real.sum(axis=-1).mean(axis=0) * 3 / rule.topk)
    total += moe.moe_comm_aux_loss_coeff * np.sum(of_groups * real.any(axis=-1).mean(axis=0) * 3 / 2)
    return total + (moe.moe_z_loss_coeff or 0.0) * np.mean(routing.log_sum_exp(logits) ** 2)


@pytest.mark.parametrize("name", LOSSES)
def test_one_rank_against_float64(name):
    """The gradient of the router's weight against finite differences of `loss_of` along some directions, the choices
    held."""
    found = run(1, route, LOSSES[name])[0]
    rule = RoutingRule.of(config_of(f"{ROUTER} {LOSSES[name]}", 1).moe_config)
    rows, weight = HIDDEN.reshape(-1, 32).astype(np.float64), WEIGHT.astype(np.float64)
    experts = routing.choose(rows @ weight.T, rule)
    assert np.array_equal(found["experts"].reshape(-1, 2), experts)
    np.testing.assert_allclose(
        found["probs"].reshape(-1, 2), routing.probabilities(rows @ weight.T, experts, rule), rtol=1e-5
    )

    def objective(weight):
        logits = rows @ weight.T
        weighted = (routing.probabilities(logits, experts, rule) * UPSTREAM.reshape(-1, 2)).sum()
        return weighted + loss_of(logits, LOSSES[name], experts)

    for direction in np.random.default_rng(4).standard_normal((12, *weight.shape)) * 1e-6:
        slope = (objective(weight + direction) - objective(weight - direction)) / 2e-6
        expected = (found["gradient"] * direction).sum() * 1e6
        assert abs(slope - expected) < 2e-5 * np.linalg.norm(found["gradient"])


@pytest.mark.parametrize("layout", ["--context-parallel-size 2", "--tensor-model-parallel-size 2 --sequence-parallel"])
@pytest.mark.parametrize("name", ["micro-batch, z", "sequences of sigmoids", "groups", "global"])
def test_ranks_that_share_a_micro_batch(name, layout):
    """Ranks that each route a part of the tokens choose one rank's experts; gradient and figures are one rank's."""
    one, shares = run(1, route, LOSSES[name])[0], run(2, route, f"{LOSSES[name]} {layout}")
    for share in shares:
        assert np.array_equal(share["experts"], one["experts"][share["places"]])
        np.testing.assert_allclose(share["gradient"], one["gradient"], atol=1e-5 * np.abs(one["gradient"]).max())
        for figure, value in one["figures"].items():
            np.testing.assert_allclose(share["figures"][figure], value, rtol=1e-5)


def test_figures():
    """The balancing loss is near one at nearly even loads; tokens_chosen counts choices before, tokens_routed after
    dropping over capacity."""
    flags = "--moe-aux-loss-coeff 0.5 --moe-expert-capacity-factor 1.0"
    found = run(1, route, flags)[0]
    chosen, routed = (found["figures"][name][0] for name in ("tokens_chosen", "tokens_routed"))
    capacity = -(-SEQUENCE * BATCH * 2 // EXPERTS)
    assert chosen.sum() == SEQUENCE * BATCH * 2 and np.array_equal(routed, np.minimum(chosen, capacity))
    kept = found["experts"] >= 0
    assert kept.sum() == routed.sum() and not found["probs"][~kept].any()
    assert 1.0 < found["figures"]["load_balancing_loss"][0] < 2.0


@pytest.mark.parametrize(
    "flags", ["--fix-router", "--moe-input-jitter-eps 0.1", "--moe-router-load-balancing-type sparsemixer_topk"]
)
def test_random_numbers_are_functions_of_place(flags):
    """A rank that has a part of the sequence draws the random numbers that one rank draws for those places."""
    one = run(1, route, flags)[0]
    plain = run(1, route, "")[0]
    assert not np.array_equal(one["probs"], plain["probs"])
    for share in run(2, route, f"{flags} --context-parallel-size 2"):
        assert np.array_equal(share["experts"], one["experts"][share["places"]])
        np.testing.assert_allclose(share["probs"], one["probs"][share["places"]], rtol=1e-5)


def moved_bias(backend, more: str) -> tuple[list, list, bool]:
    """(expert bias before, expert bias after a step in which experts got 1, 2, 3, 2, 2, 2 tokens, whether it requires a
    gradient)."""
    from mindspore import nn

    from pynative.moe.expert_bias import ExpertBiases
    from pynative.moe.router import TopKRouter

    flags = f"{ROUTER} --moe-router-score-function sigmoid --moe-router-enable-expert-bias --bf16"
    config = config_of(f"{flags} --moe-router-bias-update-rate 0.25 {more}", 1)
    with job(backend, config):
        router = TopKRouter(config.model_config, 2)
        before = router.expert_bias.asnumpy().tolist()
        ExpertBiases([nn.CellList([router])]).after_update({"tokens_routed": np.array([[0.0] * 6, [1, 2, 3, 2, 2, 2]])})
        return before, router.expert_bias.asnumpy().tolist(), router.expert_bias.requires_grad


def test_the_expert_bias_moves_towards_idle_experts():
    """The expert bias moves by the rate, up for an expert with fewer tokens than the mean, down for more, whatever the
    distance; it requires no gradient."""
    assert run(1, moved_bias, "")[0] == ([0.0] * 6, [0.25, 0, -0.25, 0, 0, 0], False)


def test_the_expert_bias_stays_beside_adapters():
    """With adapters the expert bias is not moved: the base must stay the network beside which they are loaded again."""
    assert run(1, moved_bias, "--lora-target-modules linear_qkv")[0] == ([0.0] * 6, [0.0] * 6, False)


def evaluated(backend, flags: str) -> np.ndarray:
    """The experts chosen by a router in evaluation, whose expert bias favours the last one."""
    from mindspore import Tensor

    from pynative.memory.in_place import assign
    from pynative.moe.router import TopKRouter

    config = config_of(f"{ROUTER} --moe-router-score-function sigmoid --moe-router-enable-expert-bias {flags}", 1)
    with job(backend, config):
        router = TopKRouter(config.model_config, 1)
        router.set_train(False)
        assign(router.weight, Tensor(WEIGHT))
        assign(router.expert_bias, Tensor(np.float32([0] * (EXPERTS - 1) + [9])))
        return router(Tensor(HIDDEN)).experts.asnumpy()


def test_sinkhorn_chooses_without_the_bias_in_evaluation_too():
    """With sinkhorn the choice in evaluation is by plain logits, as in Megatron; with other balancing the expert bias
    counts."""
    assert (run(1, evaluated, "")[0] == EXPERTS - 1).any(axis=-1).all()
    experts = run(1, evaluated, "--moe-router-load-balancing-type sinkhorn")[0]
    logits = HIDDEN.reshape(-1, 32) @ WEIGHT.T
    assert np.array_equal(experts, np.argsort(-logits, axis=-1)[:, :2])


def gated(backend, flags: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits of the router's `gating`, and the gradients of (hidden states, weight) of the logits' sum."""
    from mindspore import Tensor

    from pynative.memory.in_place import assign
    from pynative.moe.router import TopKRouter
    from pynative.tape import autograd

    config = config_of(f"{ROUTER} {flags}", 1)
    with job(backend, config):
        router = TopKRouter(config.model_config)
        assign(router.weight, Tensor(WEIGHT))
        hidden = autograd.leaf(Tensor(HIDDEN))
        with autograd.recording():
            logits = router.gating(hidden)
            autograd.backward([logits], [Tensor(np.ones(logits.shape, logits.asnumpy().dtype))])
        return logits.asnumpy(), *(autograd.take_gradient(x).asnumpy() for x in (hidden, router.weight))


@pytest.mark.parametrize("kernels", ["host", "ops"])
@pytest.mark.parametrize("dtype, error", [("fp32", 1e-6), ("fp64", 1e-14)])
def test_the_type_in_which_logits_are_computed(dtype, error, kernels):
    """Logits by --moe-router-dtype fp32 or fp64 have that type's error; the gradients are right in both."""
    logits, dx, dw = run(1, gated, f"--moe-router-dtype {dtype} --kernels {kernels}")[0]
    exact = HIDDEN.astype(np.float64) @ WEIGHT.astype(np.float64).T
    assert error / 100 < np.abs(logits - exact).max() < 10 * error or (dtype == "fp64" and (logits == exact).all())
    np.testing.assert_allclose(dx, np.broadcast_to(WEIGHT.sum(axis=0), dx.shape), atol=1e-5)
    np.testing.assert_allclose(dw, np.broadcast_to(HIDDEN.sum(axis=(0, 1)), dw.shape), atol=1e-4)


def summed_load(backend, load: list[float]) -> list[float]:
    from pynative.moe.aux_loss import _sum

    return _sum(np.array([load], np.float32), backend.world).tolist()[0]


def test_loads_of_many_tokens_are_counted_exactly():
    """Loads summed over three ranks, odd and beyond 2^24, where float32 has even numbers only, are exact."""
    assert run(3, summed_load, [2.0**23 - 1, 5]) == [[3 * 2.0**23 - 3, 15]] * 3


def dense_and_back(backend) -> tuple[list[np.ndarray], np.ndarray]:
    """([probabilities and map of `dense`, weights and experts of `of_dense`], gradient of the weights) of a routing
    with a dropped choice."""
    from mindspore import Tensor

    from pynative.moe.router import Routing
    from pynative.tape import autograd

    weights, experts = np.array([[0.7, 0.2], [0.0, 0.9]], np.float32), np.array([[2, 0], [-1, 1]], np.int32)
    with autograd.recording():
        probs = autograd.leaf(Tensor.from_numpy(weights))
        dense, chosen = Routing(probs, Tensor.from_numpy(experts)).dense(3)
        back = Routing.of_dense(dense, chosen)
    autograd.backward([dense], [Tensor.from_numpy(np.arange(6, dtype=np.float32).reshape(2, 3))])
    found = [each.asnumpy().copy() for each in (dense, chosen, back.probs, back.experts)]
    return found, autograd.take_gradient(probs).asnumpy().copy()


def test_a_routing_in_megatrons_form():
    """`Routing.dense` gives probabilities and map over all experts, `of_dense` the routing again; a dropped choice is
    in neither."""
    (((dense, chosen, weights, experts), gradient),) = run(1, dense_and_back)
    np.testing.assert_array_equal(dense, np.array([[0.2, 0, 0.7], [0, 0.9, 0]], np.float32))
    np.testing.assert_array_equal(chosen, [[True, False, True], [False, True, False]])
    np.testing.assert_array_equal(weights, np.array([[0.2, 0.7], [0.9, 0]], np.float32))
    np.testing.assert_array_equal(experts, [[0, 2], [1, -1]])
    np.testing.assert_array_equal(gradient, [[2, 0], [0, 4]])
