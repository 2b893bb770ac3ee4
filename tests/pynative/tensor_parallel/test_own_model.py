"""A model of a user's own made of our parallel layers: sequence parallelism belongs to the layers, not to GPT."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn

from tests.support.distributed import run
from tests.support.engine import TINY, config_of, job
from tests.support.layouts import Trained, check_layout, train

BASE = f"{TINY} --global-batch-size 8 --untie-embeddings-and-output-weights"


def own_model(config, whole_logits: bool = False) -> nn.Cell:
    """A residual network over token embeddings: norm, column- and row-parallel linears with their biases added, a
    scale of its author's, and a loss over the cut vocabulary, or over logits that were gathered."""
    from pynative import kernels
    from pynative.tensor_parallel import (
        ColumnParallelLinear,
        RowParallelLinear,
        VocabParallelCrossEntropy,
        VocabParallelEmbedding,
    )
    from pynative.training.loss_func import LossWithMask
    from pynative.transformer.norm import get_norm

    hidden, on_pieces = config.hidden_size, config.parallel_config.sequence_parallel

    class OwnModel(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.words = VocabParallelEmbedding(
                config.vocab_size, hidden, config=config, reduce_scatter_embeddings=on_pieces
            )
            self.norm = get_norm(config)
            self.up = ColumnParallelLinear(hidden, 2 * hidden, config=config)
            self.down = RowParallelLinear(2 * hidden, hidden, config=config, skip_bias_add=False)
            self.scale = Parameter(Tensor(np.linspace(0.5, 1.5, hidden).astype(np.float32)))
            self.scale.sequence_parallel = on_pieces
            self.head = ColumnParallelLinear(
                hidden, config.vocab_size, config=config, bias=False, gather_output=whole_logits
            )
            self.loss = LossWithMask(VocabParallelCrossEntropy(parallel_logits=not whole_logits))

        def set_input_tensor(self, input_tensor: Tensor | None) -> None:
            assert input_tensor is None, "one stage"

        def construct(self, tokens, labels, loss_mask, position_ids):
            x = self.words(kernels.sequence_first(tokens))
            up, _ = self.up(self.norm(x))
            down, _ = self.down(kernels.bias_activation(up, None, "gelu_tanh"))
            logits, _ = self.head((x + down) * self.scale)
            return self.loss(logits, kernels.sequence_first(labels), kernels.sequence_first(loss_mask))

    return OwnModel()


def warned(backend, flags: str) -> list[str]:
    """Warnings logged while `own_model` is built."""
    from unittest.mock import patch

    from pynative.training import training

    config, lines = config_of(flags, backend.world_size), []
    with job(backend, config), patch.object(training, "warn", lines.append):
        training.get_model(lambda **ends: own_model(config.model_config), config)
    return lines


def test_recomputation_of_a_model_without_our_layers_is_not_silent():
    """Recomputation flags with a model that has no ParallelTransformer give one warning; without them, none."""
    full = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
    (plain,), ((line,),) = run(1, warned, BASE), run(1, warned, f"{BASE} {full}")
    assert plain == [] and line.startswith("OwnModel has no ParallelTransformer: flags of recomputation")


def train_own_model(backend, flags: str) -> Trained:
    """Train `own_model`, which is one pipeline stage."""
    return train(backend, flags, build=lambda config, **stage: own_model(config))


@pytest.mark.parametrize(
    ("world", "layout"),
    [
        (2, "--tensor-model-parallel-size 2"),
        (2, "--tensor-model-parallel-size 2 --sequence-parallel"),
        (4, "--tensor-model-parallel-size 2 --sequence-parallel"),
        (4, "--tensor-model-parallel-size 4 --sequence-parallel --kernels ops"),
    ],
)
def test_a_model_of_ones_own_equals_one_process(world, layout):
    """Losses and every gradient, those of the norm, the row-parallel bias and the author's own parameter included, are
    one process's."""
    check_layout(BASE, world, layout, how=train_own_model)


def train_with_whole_logits(backend, flags: str) -> Trained:
    return train(backend, flags, build=lambda config, **stage: own_model(config, whole_logits=True))


def test_whole_logits_of_ones_own_count_once():
    """A model whose logits are gathered on each rank, as the document's with parallel_output=False, has one process's
    loss: each rank counted every token's exponentials."""
    check_layout(BASE, 2, "--tensor-model-parallel-size 2", how=train_with_whole_logits)


def frozen(backend, flags: str) -> tuple[list[str], tuple[int, ...]]:
    """(collectives in the backward of a column-parallel linear with a frozen weight, shape of dx)."""
    from pynative.tape import autograd
    from pynative.tensor_parallel import ColumnParallelLinear

    config = config_of(flags, backend.world_size)
    with job(backend, config):
        layer = ColumnParallelLinear(32, 8, config=config.model_config, bias=False, init_method="normal")
        layer.weight.requires_grad = False
        with autograd.recording():
            leaf = autograd.leaf(ms.Tensor(np.ones((4, 2, 32), np.float32)))
            y, _ = layer(leaf)
        before = {key: count.calls for key, count in backend.trace.counts.items()}
        autograd.backward([y], [ms.Tensor(np.ones(y.shape, np.float32))])
        calls = [key[1] for key, count in backend.trace.counts.items() if count.calls > before.get(key, 0)]
        return calls, autograd.take_gradient(leaf).asnumpy().shape


def test_a_frozen_weight_needs_no_input_in_backward():
    """With sequence parallelism its backward runs the reduce-scatter of dx alone and gathers no input, as there is no
    weight gradient."""
    for calls, shape in run(2, frozen, f"{TINY} --tensor-model-parallel-size 2 --sequence-parallel"):
        assert calls == ["reduce_scatter"] and shape == (4, 2, 32)
