"""Multi-token prediction: the depths' losses and their gradients, and every layout against one process."""

from unittest.mock import patch

import numpy as np
import pytest

from tests.support.distributed import run
from tests.support.engine import TINY, config_of, job
from tests.support.layouts import Rows, check_layout

BASE = f"{TINY} --global-batch-size 4 --micro-batch-size 1 --num-layers 4 --init-method-std 0.1 --mtp-num-layers 2"
MODELS = {
    "tied, dropout": f"{BASE} --position-embedding-type rope --hidden-dropout 0.1 --calculate-per-token-loss",
    "untied": f"{BASE} --position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear "
    "--group-query-attention --num-query-groups 2 --untie-embeddings-and-output-weights",
}
MODELS["own ends"] = MODELS["untied"].replace("--mtp-num-layers", "--num-nextn-predict-layers")
MODELS["own ends beside tied ones"] = MODELS["tied, dropout"].replace("--mtp-num-layers", "--num-nextn-predict-layers")
TP2, PP2 = "--tensor-model-parallel-size 2", "--pipeline-model-parallel-size 2"
AGAIN = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
LAYOUTS = [
    ("tied, dropout", 2, f"{PP2} --pipeline-schedule zb-h1"),
    ("tied, dropout", 4, f"{TP2} --sequence-parallel {PP2} {AGAIN}"),
    ("tied, dropout", 4, "--context-parallel-size 2 --use-distributed-optimizer --overlap-grad-reduce"),
    ("untied", 2, f"{TP2} {AGAIN} --recompute-slice-activation"),
    ("untied", 4, f"{PP2} --virtual-pipeline-model-parallel-size 2 --use-distributed-optimizer --overlap-grad-reduce"),
    ("untied", 4, f"--context-parallel-size 2 --context-parallel-algo ulysses_cp_algo {PP2}"),
    ("untied", 2, f"--zero-stage 3 {AGAIN}"),
    ("untied", 4, f"--zero-stage 2 {PP2}"),
    ("untied", 2, f"{PP2} --schedules-method dualpipev {AGAIN}"),
    ("untied", 4, f"{PP2} --pipeline-schedule zb-v --use-distributed-optimizer --overlap-grad-reduce"),
    ("own ends", 4, f"{TP2} --sequence-parallel {PP2} {AGAIN}"),
    ("own ends", 2, f"--zero-stage 3 {AGAIN}"),
    ("own ends beside tied ones", 2, f"{PP2} --pipeline-schedule zb-h1"),
]


@pytest.mark.parametrize(("model", "world", "layout"), LAYOUTS)
def test_a_layout_equals_one_process(model, world, layout):
    """Two depths, masks with gaps, shifts across the borders of context-parallel ranks, the embedding copied
    or tied."""
    check_layout(MODELS[model], world, layout)


def gradients(backend, flags: str) -> tuple[float, dict, dict]:
    """(loss, gradients by name, metrics) of one step."""
    from pynative.checkpointing import gather_gradients
    from pynative.training.callbacks import Callback
    from pynative.training.training import pretrain
    from pynative.transformer.gpt_model import GPTModel

    config, found = config_of(f"{flags} --train-iters 1", backend.world_size), {}

    class Recorder(Callback):
        def on_gradients(self, state, gradient_scale):
            found.update({k: g * gradient_scale for k, g in gather_gradients(state.step_cell.buffers).items()})

    with job(backend, config):
        state = pretrain(
            lambda samples: (Rows(), None, None),
            lambda **ends: GPTModel(config.model_config, **ends),
            all_config=config,
            callbacks=[Recorder()],
        )
        return state.result.loss, found, dict(state.metrics)


def test_the_loss_of_a_depth_is_only_in_the_gradient():
    """--mtp-loss-scaling-factor 0 gives the depths no gradient, twice the factor doubles theirs; the main loss stays,
    and each depth's is reported beside it."""
    none, once, twice = (
        run(1, gradients, f"{MODELS['untied']} --mtp-loss-scaling-factor {factor}")[0] for factor in (0, 0.5, 1)
    )
    assert none[0] == once[0] == twice[0]
    for name, gradient in once[1].items():
        added = gradient - none[1][name]
        np.testing.assert_allclose(twice[1][name] - none[1][name], 2 * added, atol=2e-6 * abs(gradient).max())
        if name.startswith("mtp."):
            assert not none[1][name].any() and gradient.any(), name
    assert {"mtp_1_loss", "mtp_2_loss"} <= once[2].keys()
    assert abs(once[2]["mtp_1_loss"] - np.log(64)) < 1


def test_a_forward_that_does_not_train_leaves_the_depths_out():
    """Evaluation does not run the depths and has the loss of a model without them."""
    flags = f"{MODELS['untied']} --train-iters 1"
    assert run(1, evaluated, flags)[0] == run(1, evaluated, flags.replace("--mtp-num-layers 2", ""))[0]


@pytest.mark.parametrize(("averaged", "places"), [("", [1, 2]), ("--calculate-per-token-loss", [0, 1, 2])])
def test_tokens_of_the_main_loss_are_asked_for_where_they_weigh(averaged, places):
    """The loss mask shifted by 0 places, which context-parallel ranks must gather for a script's own mask, is made with
    --calculate-per-token-loss alone."""
    assert run(1, masks_made, f"{MODELS['untied']} --train-iters 1 {averaged}")[0] == places


def masks_made(backend, flags: str) -> list[int]:
    """The number of places by which the loss mask is shifted, for each mask that a training forward makes."""
    from pynative.transformer import multi_token_prediction

    shifted, made = [], multi_token_prediction.mask_ahead

    def noted(mask, labels, places):
        shifted.append(places)
        return made(mask, labels, places)

    with patch.object(multi_token_prediction, "mask_ahead", noted):
        forward(backend, flags, train=True)
    return shifted


def evaluated(backend, flags: str) -> float:
    """The model's loss in evaluation."""
    return forward(backend, flags, train=False)


def forward(backend, flags: str, train: bool) -> float:
    """The model's loss of a batch; train=False: in evaluation, with depths that raise if they are called."""
    import mindspore as ms

    from pynative.parameter import initialize_parameters
    from pynative.transformer.gpt_model import GPTModel

    config, rows = config_of(flags, backend.world_size), [Rows()[i] for i in range(2)]
    with job(backend, config):
        model = GPTModel(config.model_config).set_train(train)
        initialize_parameters(model, 1)
        if model.language_model.mtp is not None and not train:
            model.language_model.mtp.construct = None
        batch = {name: ms.Tensor(np.stack([row[name] for row in rows])) for name in rows[0]}
        return float(model(**batch).asnumpy())
