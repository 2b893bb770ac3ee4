"""Planted differences between two runs: `compare` names the kind of each, and where it begins. One recorded run of one
or two steps each."""

from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import pytest

from mapping.compare import report
from parallel_core.compare.runs import ComparedRun
from tests.support.distributed import run
from tests.support.engine import TINY
from tests.support.layouts import Rows
from tests.support.pretraining import pretrain_tiny

MODEL = (
    f"{TINY} --swiglu --normalization RMSNorm --position-embedding-type rope --global-batch-size 8 "
    "--untie-embeddings-and-output-weights --record --record-step-start 0 --record-step-end 2"
)
FC2, QKV = "decoder.layers.1.mlp.linear_fc2.weight", "decoder.layers.0.self_attention.linear_qkv.weight"
TP2, PP2 = "--tensor-model-parallel-size 2 --sequence-parallel", "--pipeline-model-parallel-size 2"


class Plant(NamedTuple):
    """A difference between a run and one without it, and the words by which `compare` must name it."""

    named: str
    flags: str = ""
    code: str = ""
    """Name of the function or data set of this file that plants it."""
    settings: tuple[str, ...] = ()
    """Options that must be named as differing."""
    ranks: int = 1
    base: str = ""
    """Flags that the run without the difference has, too."""


def scaled_weight(state, stack, backend):
    """Multiply one weight of one layer by 1.01."""
    (weight,) = (p for p in state.model.get_parameters() if p.meta.spec.name == FC2)
    weight.asnumpy()[...] *= 1.01


def one_element(state, stack, backend):
    """Change one element of one weight."""
    (weight,) = (p for p in state.model.get_parameters() if p.meta.spec.name == QKV)
    weight.asnumpy()[3, 5] += 0.01


def other_masks(state, stack, backend):
    """Draw dropout masks from another seed."""
    from pynative.tensor_parallel.random import get_rng_tracer

    get_rng_tracer().seed += 1


def _patched(stack, name: str, change, call: int | None = None):
    """Pass an operator's result through `change`, at its n-th call in a micro-batch (`call`), or at each."""
    from pynative import kernels
    from pynative.step_position import get_step_position

    real, seen = getattr(kernels, name), {}

    def operator(*inputs, **named):
        place = get_step_position()
        seen[place] = seen.get(place, -1) + 1
        result = real(*inputs, **named)
        return change(result) if call in (None, seen[place]) else result

    stack.enter_context(patch.object(kernels, name, operator))


def wrong_attention(state, stack, backend):
    """Make the second layer's attention a thousandth too large."""
    from pynative import kernels

    _patched(stack, "attention", lambda x: kernels.scale(x, 1.001), call=1)


def wrong_activation(state, stack, backend):
    """Multiply the result of the first layer's gated activation by 0.999."""
    from pynative import kernels

    _patched(stack, "bias_activation", lambda x: kernels.scale(x, 0.999), call=0)


def halved_gradient(state, stack, backend):
    """Halve the last rank's own gradients before they are reduced."""
    from pynative.training.train_step import TrainOneStepCell

    real = TrainOneStepCell._reduce_gradients

    def halved(cell):
        for bucket in cell.buffers.buckets if backend.rank == backend.world_size - 1 else ():
            bucket._gradient.asnumpy()[...] *= 0.5
        return real(cell)

    stack.enter_context(patch.object(TrainOneStepCell, "_reduce_gradients", halved))


def lost_gradient(state, stack, backend):
    """Set one weight's gradient to zero."""
    from pynative.training.train_step import TrainOneStepCell

    real = TrainOneStepCell._reduce_gradients
    (weight,) = (p for p in state.model.get_parameters() if p.meta.spec.name == QKV)

    def lost(cell):
        weight.meta.main_grad.asnumpy()[...] = 0
        return real(cell)

    stack.enter_context(patch.object(TrainOneStepCell, "_reduce_gradients", lost))


def kept_weight(state, stack, backend):
    """Undo each update of one weight."""
    from pynative.optimizer.flat_optimizer import FlatOptimizer

    real = FlatOptimizer.step
    (weight,) = (p for p in state.model.get_parameters() if p.meta.spec.name == FC2)

    def step(optimizer, *arguments):
        before = weight.asnumpy().copy()
        real(optimizer, *arguments)
        weight.asnumpy()[...] = before

    stack.enter_context(patch.object(FlatOptimizer, "step", step))


class Swapped(Rows):
    """Data in which samples 5 and 14 have changed places."""

    def __getitem__(self, i):
        return super().__getitem__({5: 14, 14: 5}.get(i, i))


class OneToken(Rows):
    """Data in which one token of sample 9 is another."""

    def __init__(self):
        super().__init__()
        self.tokens[9, 4] = (self.tokens[9, 4] + 1) % 60


PLANTS = {
    "one weight of a layer scaled": Plant(f"step 1, weight of {FC2}: 0.0099 apart", code="scaled_weight"),
    "one element of a weight": Plant(f"step 1, weight of {QKV}", code="one_element"),
    "epsilon": Plant("step 1, activation of decoder.layers.0 in", "--norm-epsilon 1e-3", settings=("norm_epsilon",)),
    "a document swapped": Plant("step 1, data of tokens in micro-batch 2 (row 1", code="Swapped"),
    "one token": Plant("step 2, data of tokens in micro-batch 0 (row 1, from position 4 on", code="OneToken"),
    "the rotary base": Plant(
        "step 1, activation of decoder.layers.0 in", "--rotary-base 5000", settings=("rotary_base",)
    ),
    "the seed": Plant("step 1, weight of embedding", "--seed 77", settings=("training_config.seed",)),
    "the seed of dropout": Plant("step 1, activation of embedding", code="other_masks", base="--hidden-dropout 0.1"),
    "dropout": Plant("step 1, activation of embedding", "--hidden-dropout 0.1", settings=("hidden_dropout",)),
    "a rank's gradient halved": Plant("step 1, gradient of output_layer.weight", code="halved_gradient", ranks=2),
    "a lost gradient": Plant(f"step 1, gradient of {QKV}", code="lost_gradient"),
    "a weight that stays": Plant(f"step 1, update of {FC2}", code="kept_weight"),
    "an attention": Plant("step 1, activation of decoder.layers.1 in micro-batch 0", code="wrong_attention"),
    "an activation": Plant("step 1, activation of decoder.layers.0 in micro-batch 0", code="wrong_activation"),
    "the learning rate": Plant("step 1, lr", "--lr 1.1e-3", settings=("optimizer_config.learning_rate",)),
    "weight decay": Plant("step 1, weight_decay", "--weight-decay 0.2", settings=("weight_decay",)),
    "clipping": Plant("step 1, update", "--clip-grad 0.1", settings=("clip_grad",), base="--optimizer sgd"),
    "Adam's beta": Plant("step 2, update", "--adam-beta1 0.8", settings=("optimizer_config.betas",)),
    "Adam's epsilon": Plant("step 1, update", "--adam-eps 1e-3", settings=("optimizer_config.eps",)),
    "the part of heads that turns": Plant(
        "step 1, activation of decoder.layers.0 in", "--rotary-percent 0.5", settings=("rotary_percent",)
    ),
    "the loss": Plant("step 1, gradient", "--calculate-per-token-loss", settings=("calculate_per_token_loss",)),
    "nothing, under tensor parallelism": Plant("", TP2, ranks=2),
    "nothing, in a pipeline": Plant("", PP2, ranks=2),
    "nothing, over replicas": Plant("", "--use-distributed-optimizer", ranks=2),
}


def train(backend, folder: str, plant: Plant) -> None:
    """Train a run with this difference, recorded into `folder`."""
    from pynative.training.callbacks import Callback

    planted = globals().get(plant.code)
    data = planted if isinstance(planted, type) else Rows

    class Planted(Callback):
        def on_train_begin(self, state):
            if planted is not None and data is Rows:
                planted(state, stack, backend)

    with ExitStack() as stack:
        flags = f"{MODEL} --save {folder} --save-interval 9 {plant.base} {plant.flags}"
        provider = lambda samples: (data(), data(), None)  # noqa: E731
        pretrain_tiny(backend, flags, callbacks=[Planted()], train_valid_test_datasets_provider=provider)


@pytest.fixture(scope="module")
def right(tmp_path_factory) -> dict[str, Path]:
    """Flags beside the model's -> folder of a recorded run without a difference."""
    folders = {}
    for base in {plant.base for plant in PLANTS.values()}:
        folders[base] = tmp_path_factory.mktemp("right") / "run"
        run(1, train, str(folders[base]), Plant("", base=base))
    return folders


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_difference_is_named(name, right, tmp_path):
    """`compare` names the kind, the first place, and the option where it is one; a run under another layout alone has
    no difference."""
    plant = PLANTS[name]
    run(plant.ranks, train, str(tmp_path / "run"), plant)
    lines, differ = report(ComparedRun(right[plant.base]), ComparedRun(tmp_path / "run"), exact=False)
    (said,) = [line for line in lines if line.startswith(("the first difference: ", "the same in"))]
    text = "\n".join(lines)
    assert differ == bool(plant.named) and (plant.named in said), text
    assert all(any(option in line for line in lines) for option in plant.settings), text
