# mypy: disable-error-code=empty-body
"""Contract of the operators of the vocabulary: embedding and cross entropy."""

from mindspore import Tensor


def embedding(ids: Tensor, weight: Tensor, first_id: int = 0) -> Tensor:
    """ids int [...], weight [v/t, h], the rows of ids first_id ... -> [..., h]; zeros for ids of other ranks."""


def softmax_statistics(logits: Tensor, target: Tensor, first_id: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What cross entropy needs of this rank's columns: logits [..., v/t], target int [...]. Not recorded.

    Returns exp(logits - maximum) [..., v/t], and [...] each: the rows' maximum, the exponentials' sum, the logit of
    the target, 0 where the target's column is another rank's. All float32.
    """


def cross_entropy_addends(
    own_maximum: Tensor, maximum: Tensor, own_sum: Tensor, target_logit: Tensor
) -> tuple[Tensor, Tensor]:
    """The rank's exponentials' factor exp(own_maximum - maximum) [...], and what all ranks add up [2, ...]:
    the sum of its exponentials times that factor, and the target's logit. Not recorded."""


def cross_entropy_loss(added: Tensor, maximum: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
    """added [2, ...], the sum over ranks of `cross_entropy_addends` -> each token's loss [...], and what the rank's
    exponentials are multiplied with to be probabilities [...]. Not recorded."""


def cross_entropy_gradient(
    exponentials: Tensor, probability_factor: Tensor, target: Tensor, first_id: int, dloss: Tensor
) -> Tensor:
    """dloss * (probabilities - 1 at the target's column). Overwrites `exponentials`.

    exponentials [..., v/t] of `softmax_statistics`; probability_factor, target, dloss [...]. Not recorded.
    """


def masked_mean(losses: Tensor, mask: Tensor | None, count: float | None = None) -> Tensor:
    """sum(losses * mask) / max(sum(mask), 1), a scalar; the plain mean without a mask. Both [...], mask any type.

    count: divide by it instead of sum(mask), because others have more of the tokens.
    """
