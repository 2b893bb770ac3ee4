"""Averages over micro-batches and replicas: the factors of losses and gradients.

In a training step a backward pass starts from a seed, gradients are summed over micro-batches and data- and
context-parallel ranks, and the sum is multiplied once, inside the optimizer's update (an exception is below). A
micro-batch's loss and its tokens are those of whole sequences: context-parallel ranks have the same loss, each a part
of its gradient. Two rules, Megatron's:

    default                        an average of averages: each micro-batch's mean loss counts the same
    --calculate-per-token-loss     each token of the global batch counts the same

With a loss scaler, which keeps 16-bit gradients in range, the seed is multiplied by its scale, and the sum divided by
it. Under the default rule each replica then divides its gradients by the number of replicas before the sum, so that the
sum does not overflow; with --ddp-average-in-collective after it, as without a scaler.

The *reported* loss is under both the sum over the global batch's tokens divided by their number, unless a script's
loss function reports something else.
"""

from dataclasses import dataclass
from typing import Protocol

from parallel_core.numerics.loss_scale import LossScaler


class Weight(Protocol):
    """The meaning of a micro-batch's loss: over how many tokens, and whether it is their mean."""

    @property
    def tokens(self) -> float:
        """The number of tokens that the loss is the mean or sum of."""

    @property
    def is_mean(self) -> bool:
        """Whether the loss is the mean over the tokens that count; False: the sum over them."""


@dataclass(frozen=True)
class MicroBatchWeight:
    """The `Weight` of a micro-batch's loss over `tokens` tokens, which is their mean (`is_mean`) or their sum."""

    tokens: float
    is_mean: bool = True


@dataclass(frozen=True, kw_only=True)
class Averaging:
    """The factors of the gradients and losses of one training step. per_token: whether each token of the global batch
    counts the same; micro_batches: the number of them in one replica; replicas: the data-parallel size; loss_scaler:
    None: the scale is 1; average_in_collective: --ddp-average-in-collective."""

    per_token: bool
    """Whether each token of the global batch counts the same (--calculate-per-token-loss)."""
    micro_batches: int
    """The number of micro-batches of one replica in the step."""
    replicas: int
    """The data-parallel size; the context-parallel ranks of a replica share its sequences."""
    loss_scaler: LossScaler | None = None
    """The scaler whose scale multiplies every gradient of a step; None: 1."""
    average_in_collective: bool = False
    """Whether replicas sum before they average, whatever the loss scaler (--ddp-average-in-collective)."""

    @property
    def loss_scale(self) -> float:
        """The loss scaler's scale as it is now; 1 without a scaler."""
        return 1.0 if self.loss_scaler is None else self.loss_scaler.scale

    @property
    def factor_before_sum(self) -> float:
        """The factor of a replica's own gradients before they are summed over replicas: 1 / replicas with a loss
        scaler, unless `per_token` or `average_in_collective`; else 1."""
        sums_first = self.loss_scaler is None or self.per_token or self.average_in_collective
        return 1.0 if sums_first else 1.0 / self.replicas

    def seed(self, weight: Weight) -> float:
        """The gradient of a micro-batch's loss from which its backward pass starts. If tokens count alike
        (`per_token`): the loss scale, times the tokens where the loss is their mean. Else the loss scale /
        `micro_batches`, divided by the tokens (1 if fewer), too, where the loss is their sum."""
        if self.per_token:
            return (weight.tokens if weight.is_mean else 1.0) * self.loss_scale
        mean = 1.0 if weight.is_mean else 1.0 / max(weight.tokens, 1.0)
        return mean / self.micro_batches * self.loss_scale

    def gradient_scale(self, global_tokens: float) -> float:
        """The factor of the gradients after the sum over micro-batches and replicas: 1 / global_tokens if tokens count
        alike (`per_token`), else 1 / replicas; divided by `factor_before_sum` and by the loss scale. global_tokens:
        tokens of the global batch that count, taken for 1 if fewer."""
        average = 1.0 / max(global_tokens, 1.0) if self.per_token else 1.0 / self.replicas
        return average / self.factor_before_sum / self.loss_scale

    @staticmethod
    def loss_sum(loss: float, weight: Weight) -> float:
        """A micro-batch's loss summed over the tokens of its weight."""
        return loss * weight.tokens if weight.is_mean else loss


@dataclass(frozen=True)
class FurtherLosses:
    """Weights of multi-token prediction's losses beside the main one (DeepSeek-V3, 2024, section 2.2): the mean over
    `depths` depths, times `factor` (--mtp-loss-scaling-factor). per_token: --calculate-per-token-loss."""

    factor: float
    """--mtp-loss-scaling-factor."""
    depths: int
    per_token: bool

    def weight(self, tokens: float, main_tokens: float) -> float:
        """The factor of one depth's loss, the mean over `tokens` tokens, beside the main loss, the mean over
        `main_tokens`: factor / depths; with --calculate-per-token-loss times tokens / main_tokens, because the sum of
        both is multiplied by the main loss's tokens then. `depths` and `main_tokens` are taken for 1 if fewer."""
        return self.factor / max(self.depths, 1) * (tokens / max(main_tokens, 1.0) if self.per_token else 1.0)
