"""ZeRO stages 2 and 3: gradients leave the slots of transient buckets in turn, also where cells between have no
gradients, on all ranks or on some."""

import re

import numpy as np
import pytest

from tests.support.distributed import outcomes, run
from tests.support.engine import TINY, config_of
from tests.support.layouts import Trained, train

UNTIED = "--untie-embeddings-and-output-weights --num-layers 5 --position-embedding-type rope"


def layers_of(model) -> list:
    return [cell for _, cell in model.cells_and_names() if type(cell).__name__ == "ParallelTransformerLayer"]


def leave_out(layer) -> None:
    """Make a layer return its input without running, so that none of its hooks is called."""
    layer.__class__ = type("Skipped", (type(layer),), {"__call__": lambda self, states, *rest, **named: states})


def freeze(cell) -> None:
    for parameter in cell.get_parameters():
        parameter.requires_grad = False


GAPS = {
    "frozen layer": lambda model: freeze(layers_of(model)[1]),
    "layer left out": lambda model: leave_out(layers_of(model)[1]),
    "frozen decoder": lambda model: freeze(model.language_model.decoder),
}


def with_gap(backend, flags: str, gap: str) -> Trained:
    """Train a model in which cells between others send no gradients (GAPS[gap])."""
    from pynative.transformer.gpt_model import GPTModel

    def build(*arguments, **stage):
        model = GPTModel(*arguments, **stage)
        GAPS[gap](model)
        return model

    return train(backend, flags, build=build)


@pytest.mark.parametrize(("gap", "stage"), [("frozen layer", 2), ("layer left out", 3), ("frozen decoder", 2)])
def test_gradients_have_left_a_slot_when_the_next_ones_come(gap, stage):
    """A slot is free when the cell after the gap needs it: gradients of cells before and behind a frozen or skipped one
    are stage 0's to the bit."""
    flags = f"{TINY} --untie-embeddings-and-output-weights --num-layers 3 --global-batch-size 4 --clip-grad 0"
    plain, cut = (
        run(2, with_gap, f"{flags} {stages}", gap)[0]
        for stages in ("--zero-stage 0", f"--zero-stage {stage} --overlap-grad-reduce")
    )
    assert cut.losses == plain.losses and cut.gradients.keys() == plain.gradients.keys()
    for name, values in plain.gradients.items():
        np.testing.assert_array_equal(cut.gradients[name], values, err_msg=name)


def dropping(backend, flags: str) -> tuple[float, float]:
    """Train while a layer passes its input on, unused, in every second micro-batch of rank 1; (loss, norm)."""
    from pynative.transformer.gpt_model import GPTModel
    from tests.support.pretraining import pretrain_tiny

    config = config_of(flags, backend.world_size)

    def provider(**stage):
        model = GPTModel(config.model_config, **stage)
        layer = layers_of(model)[1]
        run_layer, calls = layer.construct, []

        def construct(states, *rest, **named):
            calls.append(1)
            return states if backend.rank == 1 and len(calls) % 2 == 0 else run_layer(states, *rest, **named)

        layer.construct = construct
        return model

    result = pretrain_tiny(backend, flags, model_provider_func=provider).result
    return result.loss, result.gradient_norm


@pytest.mark.parametrize("stage", [2, 3])
def test_a_layer_that_some_replicas_leave_out(stage):
    """A layer that one replica does not use in a micro-batch still takes part in the reduction in its turn: loss and
    norm are stage 0's."""
    flags = f"{TINY} {UNTIED} --global-batch-size 8"
    expected = run(2, dropping, f"{flags} --zero-stage 0")[0]
    assert run(2, dropping, f"{flags} --zero-stage {stage}")[0] == pytest.approx(expected, rel=1e-6)


def skipping(backend, flags: str) -> None:
    """Train while rank 1 does not call a layer at all."""
    from pynative.transformer.gpt_model import GPTModel
    from tests.support.pretraining import pretrain_tiny

    config = config_of(flags, backend.world_size)

    def provider(**stage):
        model = GPTModel(config.model_config, **stage)
        if backend.rank == 1:
            leave_out(layers_of(model)[1])
        return model

    pretrain_tiny(backend, flags, model_provider_func=provider)


@pytest.mark.parametrize(("stage", "what"), [(2, "gradients of"), (3, "parameters")])
def test_a_layer_that_some_replicas_do_not_call_is_an_error(stage, what):
    """CollectiveMismatch that names both layers: these have equal shapes, so adding the gradients, or gathering the
    weights, of different ones would go unnoticed."""
    flags = f"{TINY} {UNTIED} --num-layers 3 --global-batch-size 4 --zero-stage {stage}"
    for outcome in outcomes(2, skipping, flags):
        assert outcome.kind == "CollectiveMismatch" and re.search(
            rf"rank 0 calls \w+ .* of {what} decoder\.layers\.1.*rank 1 calls \w+ .* of {what} decoder\.layers\.[02]",
            outcome.text,
        ), outcome.text


def test_other_names_of_a_sum_call_the_buckets_own():
    """`issue_grad_reduce` and `final_grad_reduce` of a transient bucket do what its own `start_grad_sync` and
    `finish_grad_sync` do."""
    from pynative.distributed.transient_bucket import TransientBucket

    class Noted(TransientBucket):
        def __init__(self) -> None:
            self.calls: list[str] = []

        def start_grad_sync(self) -> None:
            self.calls.append("start")

        def finish_grad_sync(self) -> None:
            self.calls.append("finish")

    bucket = Noted()
    bucket.issue_grad_reduce()
    bucket.final_grad_reduce()
    assert bucket.calls == ["start", "finish"]
