"""Activations in host memory between forward and backward, on doubles of a device with memory of its own."""

from unittest.mock import patch

import mindspore as ms
import pytest

from tests.support.ascend.memory import HostCopies
from tests.support.ascend.stack import ascend_job
from tests.support.distributed import run
from tests.support.engine import TINY, config_of
from tests.support.gathering import digests
from tests.support.layouts import Rows
from tests.support.pretraining import pretrain_tiny

DROPOUT = "--attention-dropout 0.2 --hidden-dropout 0.1 --global-batch-size 4"


def trained(backend, flags: str) -> tuple[list[float], dict[str, str], int, int, int]:
    """(losses, digests of weights and states, bytes that went to host memory, bytes that came back, most bytes that lay
    there after a forward)."""
    from pynative.pipeline_parallel.stage import Stage
    from pynative.training.callbacks import Callback
    from pynative.training.training import pretrain
    from pynative.transformer.gpt_model import GPTModel

    config, copies, losses, there = config_of(flags, 1), HostCopies(), [], [0]
    forward = Stage._forward

    def watched(stage, *arguments):
        result = forward(stage, *arguments)
        there.append(copies.bytes)
        return result

    class Losses(Callback):
        def on_step_end(self, state):
            losses.append(state.result.loss)

    with (
        ascend_job(backend, config),
        patch.object(ms.Tensor, "to", lambda *given, **named: copies.to(*given, **named)),
        patch.object(Stage, "_forward", watched),
    ):
        state = pretrain(
            lambda samples: (Rows(), None, None),
            lambda **ends: GPTModel(config.model_config, **ends),
            all_config=config,
            callbacks=[Losses()],
        )
        weights = digests(state)
        moved = [p.name for p in state.model.get_parameters() if p.data_ptr() in copies.addresses]
    assert not moved, "weights stay"
    assert copies.bytes == 0, "everything came back"
    return losses, weights, copies.copied_out, copies.copied_back, max(there)


WAYS = [
    "--swap-attention",
    "--swap-attention --swap-modules self_attention,mlp",
    "--cpu-offloading-num-layers 1",
    "--cpu-offloading-num-layers 2 --bf16",
    "--fine-grained-activation-offloading --offload-modules core_attn mlp_norm --min-offloaded-tensor-size 100",
    "--swap-attention --recompute-granularity full --recompute-method block --recompute-num-layers 1 --recompute-norm",
]


@pytest.mark.parametrize("way", WAYS)
def test_activations_go_to_host_memory_and_come_back(way):
    """Losses, weights and states equal those of a run without offloading to the bit; as many bytes come back
    as went."""
    types = "--bf16" if "--bf16" in way else ""
    ((losses, weights, *nothing),) = run(1, trained, f"{TINY} {DROPOUT} {types}")
    ((found, updated, out, back, there),) = run(1, trained, f"{TINY} {DROPOUT} {way}")
    assert nothing == [0, 0, 0]
    assert found == losses and updated == weights
    assert out == back > 0 and there > 0


def test_a_whole_layers_activations_go():
    """--cpu-offloading-num-layers 2 puts exactly twice the bytes of 1 into host memory."""
    one, two = (run(1, trained, f"{TINY} {DROPOUT} --cpu-offloading-num-layers {n}")[0][4] for n in (1, 2))
    assert two == 2 * one


def log_of(backend, flags: str) -> list[str]:
    from pynative.training import training

    lines: list[str] = []
    with patch.object(training, "log", lines.append):
        pretrain_tiny(backend, flags)
    return lines


def test_a_cpu_says_that_nothing_is_moved():
    """--swap-attention on a CPU logs that nothing is moved, as activations are in host memory already."""
    ((lines),) = run(1, log_of, f"{TINY} --swap-attention")
    assert "--swap-attention: nothing is moved, a CPU's activations are in host memory already" in lines
