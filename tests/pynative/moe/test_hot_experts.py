"""Hot experts, which have a copy on every rank: only where tokens are computed changes, and which tokens cold experts
drop."""

import json
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest

from parallel_core.moe.hot_experts import hottest
from tests.support import checkpoint_jobs
from tests.support.distributed import run
from tests.support.engine import TINY, config_of, job
from tests.support.families import FAMILIES
from tests.support.layouts import Rows, check_layout, train
from tests.support.pretraining import pretrain_tiny

EXPERTS = (
    f"{TINY} {FAMILIES['llama']} --num-experts 4 --moe-router-topk 2 --moe-ffn-hidden-size 24 --moe-grouped-gemm "
    "--moe-aux-loss-coeff 0.01 --moe-token-dispatcher-type alltoall --global-batch-size 8"
)
EP2 = "--expert-model-parallel-size 2"
TP2 = "--tensor-model-parallel-size 2 --sequence-parallel --expert-tensor-parallel-size 2"
COLD = "--moe-expert-capacity-factor 1 --cold-token-percent 0.5"
LAYOUTS = {
    "three hot, of both ranks": (2, f"{EP2} --hot-expert-num 3"),
    "all hot, distributed optimizer": (2, f"{EP2} --hot-expert-num 4 --use-distributed-optimizer"),
    "all-gather": (2, f"{EP2} --hot-expert-num 2 --moe-token-dispatcher-type allgather"),
    "ep2 x tp2 + sp": (4, f"{EP2} --hot-expert-num 2 {TP2}"),
    "pipeline": (4, f"{EP2} --hot-expert-num 2 --pipeline-model-parallel-size 2 --pipeline-schedule zb-h1"),
    "capacity for all, padded": (
        2,
        f"{EP2} --hot-expert-num 2 --moe-expert-capacity-factor 8 --moe-pad-expert-input-to-capacity",
    ),
    "no expert parallelism": (2, "--hot-expert-num 2"),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_is_one_process_without(layout):
    """A layout with hot experts against one process without: losses, gradients, weights and moments after steps between
    which the hot experts change."""
    world, flags = LAYOUTS[layout]
    check_layout(EXPERTS, world, f"{flags} --hot-expert-update-step 1")


def test_biases_have_their_gradients_by_mindspores_operators():
    """--kernels ops, where biases' gradients of the copies come over the tape into `_grad`: they reach the owner's
    gradient."""
    with_biases = EXPERTS.replace("--disable-bias-linear", "")
    check_layout(with_biases, 2, f"{EP2} --hot-expert-num 2 --hot-expert-update-step 1 --kernels ops")


@pytest.mark.parametrize("layout", ["", "--use-distributed-optimizer", "--pipeline-model-parallel-size 2", TP2])
def test_any_number_of_hot_experts_has_the_losses_of_none(layout):
    """0 to 4 of four hot experts, with ep2 and in its combinations: the same losses (1e-6)."""
    world = 2 if "parallel-size" not in layout else 4
    numbers = range(5) if not layout else (0, 4)
    none, *others = (
        run(world, train, f"{EXPERTS} {EP2} {layout} --train-iters 4 --hot-expert-num {hot}")[0].losses
        for hot in numbers
    )
    assert none[0] - none[-1] > 1e-3
    np.testing.assert_allclose(others, [none] * len(others), rtol=0, atol=1e-6)


def test_in_bfloat16_only_the_order_of_sums_differs():
    """The first loss is equal; float32 gradients are summed in another order, so a later weight may round to its other
    neighbour (measured: no difference in four steps)."""
    losses = [
        run(2, train, f"{EXPERTS} {EP2} --bf16 --train-iters 4 --hot-expert-num {hot}")[0].losses for hot in (0, 3)
    ]
    assert losses[0][0] == losses[1][0]
    np.testing.assert_allclose(losses[1], losses[0], rtol=0, atol=2e-4)


@pytest.mark.parametrize("dispatcher", ["alltoall", "allgather"])
def test_cold_experts_drop_alike_on_any_layout(dispatcher):
    """With capacities for cold experts ep2 drops the tokens that one process drops, and changes the hot
    experts alike."""
    cold = f"{EXPERTS} --hot-expert-num 2 --hot-expert-update-step 1 {COLD} --moe-token-dispatcher-type {dispatcher}"
    check_layout(cold, 2, EP2)


def watched(backend, flags: str) -> dict[str, list]:
    """A dict: "hot", the hot experts of each micro-batch; "dropped", for each step and micro-batch (choices, weights,
    choices after dropping); "counts", for each step the reported choices of each expert."""
    from pynative import kernels
    from pynative.moe import router
    from pynative.training.callbacks import Callback

    found: dict[str, list] = {"hot": [], "dropped": [[]], "counts": []}

    class Watch(Callback):
        def on_step_end(self, state):
            found["counts"].append(np.array(state.result.figures["tokens_chosen"][0]))
            found["dropped"].append([])

    class Kernels:
        def __getattr__(self, name):
            return getattr(kernels, name)

        def drop_over_capacity(self, probs, experts, capacity, by_position):
            before = experts.asnumpy().copy(), probs.asnumpy().copy()
            found["hot"].append(tuple(np.flatnonzero(capacity == capacity.max()).tolist()))
            kept = kernels.drop_over_capacity(probs, experts, capacity, by_position)
            found["dropped"][-1].append((*before, kept[1].asnumpy().copy()))
            return kept

    router.kernels = Kernels()
    try:
        pretrain_tiny(backend, flags, callbacks=[Watch()])
    finally:
        router.kernels = kernels
    return found


def recounted(experts: np.ndarray, probs: np.ndarray, hot: tuple[int, ...]) -> np.ndarray:
    """The choices [T, k] that are left (-1: dropped) of 16 tokens with two each among four experts: a hot expert takes
    an even share, a cold one half of it, by largest weight."""
    left, share = experts.copy(), experts.size // 4
    for expert in range(4):
        takers = sorted(zip(*np.nonzero(experts == expert), strict=True), key=lambda place: -probs[place])
        for place in takers[share if expert in hot else share // 2 :]:
            left[place] = -1
    return left


def test_a_run_drops_and_chooses_as_a_plain_recount_says(tmp_path):
    """Dropped choices equal `recounted`. Hot experts are chosen anew after steps 1, 2 (powers of two below the interval
    3), 3, 6 (its multiples) and 5, where a checkpoint is written."""
    flags = f"{EXPERTS} {EP2} --num-layers 1 --hot-expert-num 2 --hot-expert-update-step 3 {COLD} --lr 3e-2"
    ranks = run(2, watched, f"{flags} --train-iters 8 --save {tmp_path} --save-interval 5")
    hot, expected = (0, 1), []
    for step, counts in enumerate(ranks[0]["counts"], start=1):
        expected.append(hot)
        own = [[np.bincount(before.ravel(), minlength=4) for before, *_ in rank["dropped"][step - 1]] for rank in ranks]
        np.testing.assert_array_equal(np.sum(own, axis=(0, 1)), counts)
        if step in (1, 2, 3, 5, 6):
            hot = hottest(counts, 2)
        for rank in ranks:
            assert len(rank["dropped"][step - 1]) == 2
            for experts, probs, after in rank["dropped"][step - 1]:
                np.testing.assert_array_equal(after, recounted(experts, probs, expected[-1]))
    assert len(set(expected)) > 2
    assert ranks[0]["hot"] == ranks[1]["hot"] == [hot for hot in expected for _ in range(2)]


SAVED = "--num-layers 2 --num-experts 4 --moe-token-dispatcher-type alltoall --lr-decay-iters 6 --lr 2e-2 --swiglu"
HOT = f"{EP2} --hot-expert-num 2 --moe-expert-capacity-factor 1.0 --cold-token-percent 0.5"


def checkpointed(flags: str, steps: bool = True) -> checkpoint_jobs.Outcome:
    """Rank 0's outcome of a run on two ranks; steps=False: right after loading."""
    return run(2, checkpoint_jobs.train, f"{SAVED} {flags}", steps)[0]


def test_a_run_is_resumed_bit_by_bit(tmp_path):
    """Resumed after step 3 with hot experts and capacities: the uninterrupted run, to the bit. Its final weights load
    into runs without hot experts, with another layout, or with more."""
    save = f"--save {tmp_path} --save-interval 3"
    whole = checkpointed(f"{HOT} {save} --train-iters 6")
    resumed = checkpointed(f"{HOT} --load {tmp_path} --ckpt-step 3 --train-iters 6 --save {tmp_path}/again")
    assert resumed.losses == whole.losses[3:]
    checkpoint_jobs.assert_same(resumed, whole)
    for others in (EP2, "", f"{EP2} --hot-expert-num 4"):
        checkpoint_jobs.assert_same(checkpointed(f"{others} --load {tmp_path} --train-iters 6", steps=False), whole)


def taken_back(backend, flags: str) -> list[tuple[int, ...]]:
    """The hot experts of a layer after each of three checkpoints' states that its ColdHotExpertMonitor takes up after
    training: another choice, one of another number of experts, and none."""
    from pynative.training.callbacks import ColdHotExpertMonitor

    state, found = pretrain_tiny(backend, flags), []
    (monitor,) = (callback for callback in state.callbacks if isinstance(callback, ColdHotExpertMonitor))
    (layer,) = (cell for _, cell in state.model.cells_and_names() if hasattr(cell, "hot_experts"))
    for hot in ({"1": [1, 3]}, {"1": [1, 2, 3]}, {}):
        monitor.load_state_dict({"hot": {"1": [2, 3]}})
        monitor.load_state_dict({"hot": hot})
        found.append(layer.hot_experts.hot)
    return found


def test_a_rollback_restores_the_choice():
    """A checkpoint's choice that is taken up during a run, as a rollback does, counts from the next step on."""
    flags = f"{EXPERTS} {EP2} --num-layers 1 --hot-expert-num 2 --train-iters 1"
    assert run(2, taken_back, flags) == [[(1, 3), (0, 1), (0, 1)]] * 2


def ordered(backend, flags: str, saves_first: bool, folder: str) -> None:
    """Train with a script's own ColdHotExpertMonitor before or after its CheckpointCallback."""
    from pynative.training.callbacks import CheckpointCallback, ColdHotExpertMonitor

    moe = config_of(flags, backend.world_size).moe_config
    callbacks = [CheckpointCallback(Path(folder), 3), ColdHotExpertMonitor(moe, save_checkpoint_steps=3)]
    state = pretrain_tiny(backend, flags, callbacks=callbacks if saves_first else callbacks[::-1])
    assert sum(isinstance(callback, ColdHotExpertMonitor) for callback in state.callbacks) == 1


def test_the_order_of_callbacks_does_not_matter(tmp_path):
    """The checkpoint is the same for both orders of `ordered`: weights, moments, and which experts are hot."""
    flags = f"{EXPERTS} {EP2} --num-layers 1 --hot-expert-num 2 {COLD} --lr 3e-2 --train-iters 3"
    for saves_first in (True, False):
        run(2, ordered, flags, saves_first, str(tmp_path / str(saves_first)))
    first, second = (
        {file.relative_to(folder): file.read_bytes() for file in sorted(folder.rglob("*.safetensors"))}
        for folder in (tmp_path / "True", tmp_path / "False")
    )
    assert first and first == second
    manifests = (next((tmp_path / order).rglob("manifest.json")).read_text() for order in ("True", "False"))
    hot, others = (json.loads(manifest)["state"]["ColdHotExpertMonitor"]["hot"] for manifest in manifests)
    assert hot == others and len(hot["1"]) == 2


def own_loops(backend, flags: str) -> dict[str, list]:
    """Losses ("losses") and hot experts ("hot") of three steps of a script's TrainOneStepCell; gradients ("gradients")
    and hot experts ("function's hot") of its forward-backward function."""
    from pynative.optimizer import get_optimizer, get_optimizer_param_scheduler
    from pynative.training.forward_backward import ForwardBackward, get_forward_backward_func
    from pynative.training.train_step import TrainOneStepCell
    from pynative.training.training import get_model
    from pynative.transformer.gpt_model import GPTModel

    config, rows = config_of(flags, backend.world_size), Rows()
    samples = [rows[4 * backend.rank + i] for i in range(4)]
    batch = {name: np.stack([sample[name] for sample in samples]) for name in samples[0]}
    training, model_config = config.training_config, config.model_config
    found: dict[str, list] = {"losses": [], "hot": [], "gradients": [], "function's hot": []}
    with job(backend, config):
        model = get_model(lambda **stage: GPTModel(model_config, **stage), config)
        optimizer = get_optimizer(config.optimizer_config, training, network=model)
        cell = TrainOneStepCell(model, optimizer, get_optimizer_param_scheduler(config), training, model_config)
        for _ in range(3):
            found["losses"].append(cell(**batch)[0])
            found["hot"].append(dict(cell.hot_experts.chosen))
        model = get_model(lambda **stage: GPTModel(model_config, **stage), config)
        parameters = model.trainable_params()
        function = get_forward_backward_func(model, parameters, training, model_config)
        for _ in range(2):
            _, gradients = function(**batch)
            found["gradients"] = [gradient.asnumpy().copy() for gradient in gradients]
            found["function's hot"].append(dict(ForwardBackward.of(model, config).hot_experts.chosen))
    return found


def test_a_loop_of_ones_own_has_hot_experts():
    """A script's own step cell and forward-backward function choose hot experts anew after steps, and add the copies'
    gradients to the owners'."""
    flags = f"{EXPERTS} {EP2} --lr 3e-2"
    plain, hot = (run(2, own_loops, f"{flags} --hot-expert-num {number}") for number in (0, 2))
    for without, found in zip(plain, hot, strict=True):
        np.testing.assert_allclose(found["losses"], without["losses"], rtol=0, atol=1e-6)
        for one, other in zip(found["gradients"], without["gradients"], strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-5 * np.abs(other).max() + 1e-9)
        assert all(len(chosen) == 2 for chosen in [*found["hot"], *found["function's hot"]])
        assert found["hot"][0] == found["function's hot"][0] == hot[0]["hot"][0]
    assert not plain[0]["hot"][0]


def kinds_of_layers(backend, flags: str) -> list[str]:
    """The kinds of the feed-forward blocks that a script's callback finds by `moe_module_name`."""
    from pynative.transformer.gpt_model import GPTModel

    config = config_of(flags, backend.world_size)
    with job(backend, config):
        layers = attrgetter(config.moe_config.moe_module_name)(GPTModel(config.model_config))
        return [type(layer.mlp).__name__ for layer in layers.cells()]


def test_the_module_path_leads_to_the_layers():
    """`moe_module_name` leads from a GPTModel to its layers, whose feed-forward blocks are MoELayers."""
    assert run(1, kinds_of_layers, EXPERTS)[0] == ["MoELayer"] * 2
