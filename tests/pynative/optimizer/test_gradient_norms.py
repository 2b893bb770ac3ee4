"""Norms of each parameter's gradient: together they are the gradient's, whoever holds which part of it."""

import numpy as np
import pytest

from tests.support.distributed import run
from tests.support.engine import TINY, config_of, job
from tests.support.layouts import Rows

MODEL = f"{TINY} --train-iters 1 --global-batch-size 4 --untie-embeddings-and-output-weights --log-interval 1"


def norms(backend, flags: str) -> tuple[dict[str, float], float]:
    """(norm of each parameter's gradient that this rank logs with --log-local-norm, norm of the whole gradient)."""
    from pynative.training import callbacks
    from pynative.training.training import pretrain
    from pynative.transformer.gpt_model import GPTModel

    config, lines = config_of(f"{MODEL} --log-local-norm {flags}", backend.world_size), []
    with job(backend, config), pytest.MonkeyPatch.context() as patch:
        patch.setattr(callbacks.gradient_norms, "log", lines.append)
        state = pretrain(
            lambda samples: (Rows(), None, None),
            lambda **ends: GPTModel(config.model_config, **ends),
            all_config=config,
        )
        found = (line.partition("Local_norm: ")[2].split(": ") for line in lines)
        return {name: float(norm) for name, norm in found}, state.result.gradient_norm


@pytest.mark.parametrize("layout", ["", "--tensor-model-parallel-size 2", "--use-distributed-optimizer"])
def test_parts_add_up_to_the_whole(layout):
    """--log-local-norm: rank 0 alone logs each parameter's norm, one process's, and they add up to the whole norm."""
    alone, _ = run(1, norms, "")[0]
    (found, whole), *others = run(2 if layout else 1, norms, layout)
    assert np.sqrt(sum(norm**2 for norm in found.values())) == pytest.approx(whole, rel=1e-5)
    assert found.keys() == alone.keys() and len(found) > 10
    for name, norm in found.items():
        assert norm == pytest.approx(alone[name], rel=1e-4, abs=1e-7), name
    assert all(not spoken for spoken, _ in others)


def test_each_expert_is_logged_by_a_rank_that_has_it():
    """ep2: each parameter's norm is logged once and is one process's, experts' on their own rank, all others on the
    first."""
    experts = "--num-experts 4 --moe-token-dispatcher-type alltoall"
    alone, whole = run(1, norms, experts)[0]
    (first, _), (second, _) = run(2, norms, f"{experts} --expert-model-parallel-size 2")
    assert {*first} | {*second} == {*alone} and not {*first} & {*second}
    assert {name.split("local_experts.")[-1][:2] for name in second} == {"2.", "3."}
    found = first | second
    assert np.sqrt(sum(norm**2 for norm in found.values())) == pytest.approx(whole, rel=1e-5)
    for name, norm in found.items():
        assert norm == pytest.approx(alone[name], rel=1e-4, abs=1e-7), name
