"""`check_layout` finds an engine that is wrong in one place on one rank."""

from collections.abc import Callable
from typing import NamedTuple
from unittest.mock import patch

import pytest

from tests.support.distributed import run
from tests.support.engine import TINY
from tests.support.layouts import STEPS, Trained, check_layout, differences, reference, train

FLAGS = f"{TINY} --global-batch-size 8 --untie-embeddings-and-output-weights"
LAYOUTS = {"tp2": "--tensor-model-parallel-size 2", "pp2": "--pipeline-model-parallel-size 2", "dp2": ""}
WEIGHT = "mlp.linear_fc1.weight"


def step_left_out(number: int, ranks: tuple[int, ...]) -> Callable:
    """A step that leaves out the optimizer's update of that number on these ranks."""

    def step(optimizer, rank: int, real: Callable, *arguments) -> None:
        optimizer.calls = getattr(optimizer, "calls", 0) + 1
        if rank not in ranks or optimizer.calls != number:
            real(optimizer, *arguments)

    return step


def gradient_halved(optimizer, rank: int, real: Callable, *arguments) -> None:
    """In the last update halve the gradient of one of rank 1's matrices."""
    if rank == 1 and optimizer.steps == 1:
        parameter, *_ = next(of_one_matrix(optimizer))
        parameter.main_grad.asnumpy()[...] *= 0.5
    real(optimizer, *arguments)


def moment_not_updated(optimizer, rank: int, real: Callable, *arguments) -> None:
    """After the last update put back the average of squared gradients of one of rank 1's matrices."""
    *_, state = next(of_one_matrix(optimizer))
    square = state["exp_avg_sq"].asnumpy()
    before = square.copy()
    real(optimizer, *arguments)
    if rank == 1 and optimizer.steps == 2:
        square[...] = before


def of_one_matrix(optimizer):
    """(parameter, span, states) of this rank's matrices whose name ends with WEIGHT."""
    return (pair for pair in optimizer.states_of_parameters() if pair[0].meta.spec.name.endswith(WEIGHT))


class Mutation(NamedTuple):
    """A planted fault, and the figures of `differences` that find it."""

    step: Callable
    on_one_rank: bool
    found_by: set[str]


MUTATIONS = {
    "the first update is left out": Mutation(
        step_left_out(1, ranks=(0, 1)), False, {"loss", "norm", "update", "state"}
    ),
    "the last update is left out": Mutation(step_left_out(2, ranks=(0, 1)), False, {"update", "state"}),
    "the last update is left out on one rank": Mutation(step_left_out(2, ranks=(1,)), True, {"update", "state"}),
    "one gradient is halved on one rank": Mutation(gradient_halved, True, {"update", "state"}),
    "a shard's moment is not updated": Mutation(moment_not_updated, True, {"state"}),
}


def train_mutated(backend, flags: str, mutation: str) -> Trained:
    """Train with the optimizer's step replaced by that of a mutation."""
    from pynative.optimizer.optimizer import FlatOptimizer

    real, mutated = FlatOptimizer.step, MUTATIONS[mutation].step
    with patch.object(FlatOptimizer, "step", lambda self, *rest: mutated(self, backend.rank, real, *rest)):
        return train(backend, flags)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_mutation_is_found(mutation, layout):
    """Without data parallelism the trained arrays differ from one process's; with it replicas on rank 1 differ."""
    results = run(2, train_mutated, f"{FLAGS} {LAYOUTS[layout]} {STEPS}", mutation)
    kinds = {finding.split()[0] for finding in differences(results, reference(FLAGS))}
    _, on_one_rank, found_by = MUTATIONS[mutation]
    assert kinds, "nothing was found"
    assert kinds - {"rank"} == (set() if layout == "dp2" and on_one_rank else found_by)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_without_a_mutation_nothing_is_found(layout):
    """`check_layout` passes the engine as it is on tp2, pp2 and dp2."""
    check_layout(FLAGS, 2, LAYOUTS[layout])
