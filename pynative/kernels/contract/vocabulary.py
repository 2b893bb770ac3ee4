# mypy: disable-error-code=empty-body
"""Contract of the operators of the vocabulary: embedding and cross entropy."""

from mindspore import Tensor


def embedding(ids: Tensor, weight: Tensor, first_id: int = 0) -> Tensor:
    """ids int [...], weight [v/t, h], the rows of ids first_id ... -> [..., h]; zeros for ids without a row."""


def softmax_statistics(logits: Tensor, target: Tensor, first_id: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """The statistics of this rank's columns that cross entropy needs: logits [..., v/t], the columns of ids first_id
    ..., target int [...]. Not recorded.

    Returns [...] each, float32: the rows' maximum, the sum of exp(logits - maximum), and the logit of the target, 0
    where the target has no column here.
    """


def cross_entropy_addends(own_maximum: Tensor, maximum: Tensor, own_sum: Tensor, target_logit: Tensor) -> Tensor:
    """This rank's part of a sum over the ranks that share the vocabulary, float32 [2, ...]: own_sum exp(own_maximum -
    maximum), `maximum` being that of all ranks' columns, and the target's logit.

    Not recorded.
    """


def cross_entropy_loss(added: Tensor, maximum: Tensor) -> Tensor:
    """added [2, ...], the sum over ranks of `cross_entropy_addends`, and `maximum` [...] as there -> each token's loss
    [...], float32. Not recorded."""


def cross_entropy_gradient(
    logits: Tensor,
    maximum: Tensor,
    added: Tensor,
    target: Tensor,
    first_id: int,
    dloss: Tensor,
    overwrite: bool = False,
) -> Tensor:
    """The gradient of the logits, [..., v/t] in their type: dloss times their probabilities, from which 1 is taken in
    the target's column. Not recorded.

    The probabilities are computed again from logits [..., v/t], the columns of ids first_id ..., and, of all ranks,
    maximum [...] and added [2, ...]. target, dloss [...]. overwrite: the result may be written over the logits.
    """


def masked_mean(losses: Tensor, mask: Tensor | None, count: float | None = None) -> Tensor:
    """sum(losses * mask) / max(sum(mask), 1), a scalar; the plain mean without a mask. losses and mask [...], the mask
    of any type.

    count: the divisor (1 if it is less), instead of sum(mask) or of the number of losses; for a mean over tokens of
    several ranks.
    """
