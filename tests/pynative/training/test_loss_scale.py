"""Loss scaling in the training loop: an overflow anywhere is seen everywhere, a skipped step changes nothing but the
scale, and scaled gradients make the same updates."""

from collections.abc import Sequence
from unittest.mock import patch

import numpy as np
import pytest

from parallel_core.numerics.loss_scale import DynamicLossScaler
from tests.support.distributed import run
from tests.support.gathering import digests
from tests.support.pretraining import BATCHES, pretrain_tiny

BF16 = f"{BATCHES} --bf16 --train-iters 4 --lr 1e-2 --lr-decay-style linear --weight-decay-incr-style linear"
BF16 += " --start-weight-decay 0.1 --end-weight-decay 0.2"
BAD_STEP = 1


def spoil(backend, rank: int, name: str, value: float):
    """Patch `reduce_gradients` so that in the second step an element of one rank's gradient is first set to `value`."""
    from pynative.distributed.param_and_grad_buffer import ParamAndGradBuffers
    from pynative.step_position import get_step_position

    reduce = ParamAndGradBuffers.reduce_gradients

    def spoiled(buffers) -> None:
        buffers.zero_unused_gradients()
        if backend.rank == rank and get_step_position().iteration == BAD_STEP:
            (parameter,) = (p for _, p in buffers.entries if p.meta.spec.name.endswith(name))
            parameter.main_grad.asnumpy().reshape(-1)[-1] = value
        reduce(buffers)

    return patch.object(ParamAndGradBuffers, "reduce_gradients", spoiled)


def steps_with_an_overflow(backend, flags: str, rank: int, name: str, value: float) -> list[dict]:
    """For each step a dict of "skipped", "scale", "norm", "state" (digests), "steps", "schedule", "scale after",
    "logged"."""
    from pynative.training.callbacks import Callback

    found = []

    class Seen(Callback):
        def on_step_end(self, state):
            cell = state.step_cell
            found.append(
                {
                    "skipped": state.result.skipped,
                    "scale": state.result.loss_scale,
                    "norm": state.result.gradient_norm,
                    "state": digests(state),
                    "steps": cell.optimizer.steps,
                    "schedule": (cell.scheduler.get_lr(), cell.scheduler.get_wd(), cell.scheduler.state_dict()),
                    "scale after": cell.loss_scaler.scale,
                    "logged": state.metrics["skipped"],
                }
            )

    with spoil(backend, rank, name, value):
        state = pretrain_tiny(backend, flags, callbacks=[Seen()])
    assert state.iteration == 4 and state.consumed_samples == 16
    return found


LAYOUTS = {
    "1 rank": (1, ""),
    "dp2": (2, ""),
    "tp2": (2, "--tensor-model-parallel-size 2"),
    "pp2": (2, "--pipeline-model-parallel-size 2"),
    "cp2": (2, "--context-parallel-size 2"),
    "dp2 sharded": (2, "--use-distributed-optimizer"),
}
CASES = [
    ("1 rank", 0, "1.mlp.linear_fc1.bias", np.inf),
    # Parameters that only the first rank counts in the norm: replicated over tp2, tied over pp2.
    ("tp2", 1, "final_layernorm.weight", np.nan),
    ("pp2", 1, "word_embeddings.weight", -np.inf),
    ("dp2", 0, "position_embeddings.weight", np.nan),
    # The overflow comes from a rank that keeps another part of the reduced gradients.
    ("dp2 sharded", 0, "1.mlp.linear_fc1.bias", np.inf),
    ("dp2 sharded", 1, "position_embeddings.weight", np.nan),
]


@pytest.mark.parametrize(("layout", "rank", "name", "value"), CASES)
def test_an_overflow_on_one_rank_is_seen_by_all_and_changes_nothing(layout, rank, name, value):
    """The step is skipped on all ranks: weights, float32 values, moments, step count and schedules stay to the bit; the
    next steps are made."""
    world, flags = LAYOUTS[layout]
    for steps in run(world, steps_with_an_overflow, f"{BF16} {flags} --loss-scale 1024", rank, name, float(value)):
        assert [step["skipped"] for step in steps] == [False, True, False, False]
        assert [step["logged"] for step in steps] == [False, True, False, False]
        before, skipped, after = steps[BAD_STEP - 1], steps[BAD_STEP], steps[BAD_STEP + 1]
        assert not np.isfinite(skipped["norm"]) and np.isfinite(after["norm"])
        for kind in ("state", "steps", "schedule"):
            assert skipped[kind] == before[kind] and skipped[kind] != after[kind], kind


FP16 = f"{BATCHES} --fp16 --initial-loss-scale 256 --hysteresis 3 --lr 1e-2 --weight-decay 0.1"
EXPERTS = (
    "--num-experts 4 --expert-model-parallel-size 2 --moe-router-topk 2 --moe-router-score-function sigmoid "
    "--moe-router-enable-expert-bias --moe-router-bias-update-rate 0.1 --hot-expert-num 1"
)


def after_overflows_everywhere(backend, flags: str, picked: Sequence[float]) -> list[tuple]:
    """Set an element of one gradient to infinity in each step but the first and last: of each rank the parameters at
    these parts of its list. For each step (skipped, digests with biases and hot experts, steps, scaler's state)."""
    from pynative.distributed.param_and_grad_buffer import ParamAndGradBuffers
    from pynative.step_position import get_step_position
    from pynative.training.callbacks import Callback

    steps = [(rank, part) for rank in range(backend.world_size) for part in picked]
    found = []

    reduce = ParamAndGradBuffers.reduce_gradients

    def spoiled(buffers) -> None:
        buffers.zero_unused_gradients()
        rank, part = dict(enumerate(steps, start=1)).get(get_step_position().iteration, (None, 0))
        if backend.rank == rank:
            _, parameter = buffers.entries[round(part * (len(buffers.entries) - 1))]
            parameter.main_grad.asnumpy().reshape(-1)[0] = np.inf
        reduce(buffers)

    class Seen(Callback):
        def on_step_end(self, state):
            scaler = state.step_cell.loss_scaler.state_dict()
            biases = [bias.asnumpy().tolist() for bias in state.step_cell.expert_biases.untrained]
            kept = digests(state), biases, dict(state.step_cell.hot_experts.chosen)
            found.append((state.result.skipped, kept, state.step_cell.optimizer.steps, scaler))

    with patch.object(ParamAndGradBuffers, "reduce_gradients", spoiled):
        pretrain_tiny(backend, f"{FP16} {flags} --train-iters {len(steps) + 2}", callbacks=[Seen()])
    return found


@pytest.mark.parametrize("layout", [*(flags for world, flags in LAYOUTS.values() if world == 2), EXPERTS])
def test_an_overflow_in_any_parameter_of_any_rank_is_seen_by_all(layout):
    """An infinite gradient in the first, middle or last parameter of any rank: all ranks skip the step, and only the
    scaler's state changes, alike on both."""
    ranks = run(2, after_overflows_everywhere, layout, [0, 0.5, 1])
    expected = DynamicLossScaler(scale=256.0, hysteresis=3)
    for number, steps in enumerate(zip(*ranks, strict=True)):
        overflows = 0 < number < len(ranks[0]) - 1
        expected.update(overflows)
        assert [(skipped, scaler) for skipped, _, _, scaler in steps] == 2 * [(overflows, expected.state_dict())]
    for steps in ranks:
        assert all(step[1:3] == steps[0][1:3] for step in steps[:-1]) and steps[-1][1:3] != steps[0][1:3]


def trained(backend, flags: str) -> list[tuple]:
    """(loss, norm, digests of weights and moments) of each step."""
    from pynative.training.callbacks import Callback

    figures = []

    class Seen(Callback):
        def on_step_end(self, state):
            figures.append((state.result.loss, state.result.gradient_norm, digests(state)))

    pretrain_tiny(backend, flags, callbacks=[Seen()])
    return figures


@pytest.mark.parametrize("averaging", ["", "--calculate-per-token-loss"])
def test_a_power_of_two_changes_no_bit_of_a_bf16_run(averaging):
    """A constant loss scale of a power of two, on the seed and off the gradient, rounds nothing differently, as
    bfloat16 has float32's exponents."""
    plain, scaled = (run(1, trained, f"{BF16} {averaging} {flags}")[0] for flags in ("", "--loss-scale 4096"))
    assert plain == scaled
