"""Multi-token prediction (DeepSeek-V3, 2024, section 2.2): layers behind the decoder that predict later tokens.

`mtp.layers.K`, Megatron's name, is depth K, from 0, which predicts the token K + 2 places on. Embedding and output
layer are the model's, or each depth has its own.
"""

import enum
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from mindspore import Tensor, nn

from parallel_core import blocks
from parallel_core.config import ModelConfig
from parallel_core.numerics import averaging
from parallel_core.numerics.dtypes import Array
from parallel_core.recompute.plan import CellRecompute
from parallel_core.step_figures import mtp_loss
from pynative import kernels, parallel_state, step_figures
from pynative.context_parallel.batch import counted_tokens, mask_ahead, tokens_ahead
from pynative.parameter import type_of
from pynative.tape import autograd
from pynative.tape.layer_events import Observable
from pynative.tensor_parallel.layers import ColumnParallelLinear
from pynative.tensor_parallel.recompute import checkpoint
from pynative.transformer.embedding import Embedding
from pynative.transformer.enums import AttnMaskType
from pynative.transformer.kinds import LayerSettings, cell_of
from pynative.transformer.layer_kinds import LAYERS
from pynative.transformer.stream_connections import stream_head_of


class OwnEmbedding(Embedding):
    """A depth's own embedding. Hidden states pass through it unchanged, so that their gradient tells when its backward
    is over (`layer_events`): tokens have none."""

    def construct(  # type: ignore[override]
        self, tokens: Tensor, position_ids: Tensor | None, ahead: int, hidden_states: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(`Embedding`'s result for tokens, position_ids and ahead, the hidden states as they are)."""
        return super().construct(tokens, position_ids, ahead), hidden_states


class _Projection(Observable, ColumnParallelLinear):
    """The projection of a depth, as an observable cell of its own, since it lies between two others."""


class MultiTokenPredictionLayer(nn.Cell):
    """One depth: eh_proj([enorm(embeddings), hnorm(hidden states)]), a transformer layer, with several
    residual streams their merge, final_layernorm.

    `layer_number` is global, from 1: depths follow the decoder's layers.
    """

    def __init__(
        self,
        config: ModelConfig,
        layer_number: int,
        block: blocks.MultiTokenPredictionLayer,
        self_attn_mask_type: enum.Enum = AttnMaskType.causal,
    ) -> None:
        super().__init__()
        layer, plan = block.transformer_layer, block.recompute
        recomputed = CellRecompute.of(plan.layers[0], plan.smallest_offloaded)
        settings = LayerSettings(config, layer_number, self_attn_mask_type, recomputed)
        self.compute_dtype, self.residual_dtype = type_of(config.compute_dtype), type_of(config.residual_dtype)
        self.embedding = None if block.embedding is None else OwnEmbedding(config, blocks.Embedding.of(config).own)
        self.enorm, self.hnorm = cell_of(block.enorm, settings), cell_of(block.hnorm, settings)
        self.eh_proj = _Projection.of(block.eh_proj, config, gather_output=True)
        self.transformer_layer = LAYERS[type(layer)](layer, settings)
        self.hc_head = stream_head_of(block.hc_head)
        self.final_layernorm = cell_of(block.final_layernorm, settings)
        self._run = partial(checkpoint, self._through, plan.slices_inputs) if block.is_computed_again else self._through

    def construct(self, embeddings: Tensor, hidden_states: Tensor, *context: Any) -> Tensor:
        """embeddings of the tokens ahead and hidden states, both [s, b, h] (with sequence parallelism [s/t, b, h]) ->
        the depth's hidden states. context: further arguments of its transformer layer."""
        hidden_states = self._run(embeddings, hidden_states, *context)
        return self.final_layernorm(hidden_states if self.hc_head is None else self.hc_head(hidden_states))

    def _through(self, embeddings: Tensor, hidden_states: Tensor, *context: Any) -> Tensor:
        normed = (self.enorm(embeddings), self.hnorm(hidden_states))
        joined = kernels.join_features(*(kernels.cast(x, self.compute_dtype) for x in normed))
        projected = self.eh_proj.boundary.scatter(self.eh_proj(joined)[0])
        stream = kernels.cast(projected, self.residual_dtype)
        if self.hc_head is not None:
            stream = kernels.repeat_streams(stream, self.hc_head.rule.streams)
        return self.transformer_layer(stream, *context)


class MultiTokenPrediction(nn.Cell):
    """All depths: the first on the decoder's hidden states, each other on those of the depth before."""

    def __init__(
        self,
        config: ModelConfig,
        block: blocks.MultiTokenPrediction,
        self_attn_mask_type: enum.Enum = AttnMaskType.causal,
    ) -> None:
        super().__init__()
        first = config.num_layers + 1
        self._shares = config.sparse_attention.enabled and not config.compressed_attention.enabled
        self.layers = nn.CellList(
            [
                MultiTokenPredictionLayer(config, first + depth, layer, self_attn_mask_type)
                for depth, layer in enumerate(block.layers)
            ]
        )

    def construct(
        self,
        hidden_states: Tensor,
        tokens: Tensor,
        embedding: Embedding | None,
        *masking: Tensor | Array | None,
    ) -> list[Tensor]:
        """The decoder's hidden states [s, b, h] (with sequence parallelism [s/t, b, h]) and tokens [b, s] -> each
        depth's hidden states, of the same shape. embedding: the model's, for depths without one of their own. masking:
        attention mask and document starts."""
        states: list[Tensor] = []
        context = (*masking, {}) if self._shares else masking
        for depth, layer in enumerate(self.layers, 1):
            if states:
                hidden_states, states[-1] = kernels.fork(hidden_states)
            ahead = tokens_ahead(tokens, depth)
            if layer.embedding is None:
                assert embedding is not None, "a last stage has the embedding that depths share"
                embeddings = embedding(ahead, None, depth)
            else:
                embeddings, hidden_states = layer.embedding(ahead, None, depth, hidden_states)
            hidden_states = layer(embeddings, hidden_states, *context)
            states.append(hidden_states)
        return states


class FurtherLosses:
    """The losses of the depths of multi-token prediction, which are attached to the main loss: its backward starts
    theirs, its value stays."""

    def __init__(self, config: ModelConfig) -> None:
        settings, training = config.multi_token_prediction, config.parallel_config.all_config.training_config
        self.weighing = averaging.FurtherLosses(
            settings.loss_scaling_factor, settings.depths, training.calculate_per_token_loss
        )

    def __call__(
        self,
        loss: Tensor,
        states: Sequence[Tensor],
        labels: Tensor,
        loss_mask: Tensor | None,
        loss_of: Callable[[Tensor, Tensor, Tensor, int], Tensor],
    ) -> Tensor:
        """Return the main loss, whose backward also starts the weighted losses of all depths; the losses without their
        weights are reported as figures.

        states: each depth's hidden states; `loss_of` (hidden states, labels, mask, depth from 1) computes the mean
        loss. A depth's labels and mask are shifted by one place more than those of the one before; where none is left
        nothing counts.
        """
        others, weights, main = [], [], self._main_tokens(labels, loss_mask)
        for depth, state in enumerate(states, 1):
            mask = mask_ahead(loss_mask, labels, depth)
            others.append(loss_of(state, tokens_ahead(labels, depth), mask, depth))
            weights.append(self.weighing.weight(counted_tokens(labels, mask) or 0.0, main))
            self._report(depth, others[-1])
        return _with_losses_beside(loss, others, weights)

    def _main_tokens(self, labels: Tensor, loss_mask: Tensor | None) -> float:
        """The number of tokens that count in the main loss where a weight depends on it (else 1): a mask that a script
        made is gathered over the context-parallel ranks for it."""
        if not self.weighing.per_token:
            return 1.0
        return counted_tokens(labels, mask_ahead(loss_mask, labels, 0)) or 0.0

    @staticmethod
    def _report(depth: int, loss: Tensor) -> None:
        """Report a depth's loss as a figure; tensor- and context-parallel ranks, which have the same loss, a share
        each."""
        figures, alike = step_figures.current(), parallel_state.get_tensor_and_context_parallel_world_size()
        if figures is not None:
            figures.add(mtp_loss(depth), loss, share=1.0 / alike)


def _with_losses_beside(loss: Tensor, others: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """The loss as it is; its backward is that of loss + sum(weights x others). All are scalars, float32.

    So they are averaged over micro-batches and replicas as the main loss is, whoever does that, and that alone is
    reported (Megatron's MTPLossAutoScaler).
    """
    (attached,) = autograd.identity([loss], lambda dy: [kernels.scale(dy, weight) for weight in weights], others)
    return attached
