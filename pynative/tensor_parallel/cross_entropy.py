"""Cross entropy over a vocabulary that is cut over the tensor-parallel group: from cut logits it is computed by sending
per-token numbers alone."""

from typing import Any

from mindspore import Tensor, nn

from pynative import kernels, parallel_state
from pynative.collectives import Group
from pynative.tape.autograd import Function
from pynative.tensor_parallel.mappings import scatter_to_tensor_model_parallel_region


class _VocabParallelCrossEntropy(Function):
    """loss = log(sum_j exp(z_j)) - z_target.

    Each rank sums exponentials relative to its own maximum m_r; with the maximum m of all ranks, rank r's sum counts
    exp(m_r - m) times. Of the vocabulary's size only the logits are kept: exponentials are computed again.
    """

    def forward(ctx: Any, logits: Any, target: Any, first_id: Any, group: Any, overwrite: Any) -> Any:
        own_max, own_sum, target_logit = kernels.softmax_statistics(logits, target, first_id)
        highest = group.all_reduce(own_max, op="max")
        added = group.all_reduce(kernels.cross_entropy_addends(own_max, highest, own_sum, target_logit))
        ctx.save_for_backward(logits, highest, added, target)
        ctx.first_id, ctx.overwrite, ctx.logits_are_there = first_id, overwrite, True
        return kernels.cross_entropy_loss(added, highest)

    def backward(ctx: Any, dloss: Any) -> Any:
        logits, highest, added, target = ctx.saved_tensors
        assert ctx.logits_are_there, "the first backward has written the gradient over the logits"
        ctx.logits_are_there = not ctx.overwrite
        dlogits = kernels.cross_entropy_gradient(logits, highest, added, target, ctx.first_id, dloss, ctx.overwrite)
        return dlogits, None, None, None, None


def vocab_parallel_cross_entropy(
    vocab_parallel_logits: Tensor, target: Tensor, group: Group, overwrite_logits: bool = False
) -> Tensor:
    """Loss of each token, float32 [...], from this rank's logits [..., v/t] and target ids [...], int; the logits'
    gradient has their type.

    overwrite_logits: the backward may write the gradient over the logits, which then nothing else may need, not even
    the backward of the operator that made them.
    """
    first_id = group.rank * vocab_parallel_logits.shape[-1]
    return _VocabParallelCrossEntropy.apply(vocab_parallel_logits, target, first_id, group, overwrite_logits)


class VocabParallelCrossEntropy(nn.Cell):
    """`vocab_parallel_cross_entropy` as a cell over the tensor-parallel group.

    Args:
        overwrite_logits: the backward may write the gradient over the logits, which then nothing else may need.
        parallel_logits: each rank's logits are of its part of the vocabulary; False: they are whole on every rank, as
            `parallel_output=False` or `gather_output=True` makes them, and a rank takes its part.
    """

    def __init__(self, overwrite_logits: bool = False, parallel_logits: bool = True) -> None:
        super().__init__()
        self.overwrite_logits, self.parallel_logits = overwrite_logits, parallel_logits

    def construct(self, vocab_parallel_logits: Tensor, target: Tensor, label_smoothing: float = 0.0) -> Tensor:
        """logits [b, s, v/t] (or [s, b, v/t]; v instead with parallel_logits=False) and target ids of the same leading
        shape -> per-token losses, float32, of that shape. Raises ValueError for label smoothing, and over several
        ranks, with parallel_logits=False for a last axis that t does not divide, else for logits as wide as the
        vocabulary of the job's configuration, if there is one."""
        if label_smoothing:
            raise ValueError(f"label_smoothing {label_smoothing}: not available for a cut vocabulary yet; use 0")
        group = parallel_state.get_tensor_model_parallel_group()
        if not self.parallel_logits:
            vocab_parallel_logits = scatter_to_tensor_model_parallel_region(vocab_parallel_logits, group)
        elif group.size > 1:
            _check_cut(vocab_parallel_logits)
        return vocab_parallel_cross_entropy(vocab_parallel_logits, target, group, self.overwrite_logits)


def _check_cut(logits: Tensor) -> None:
    """Raise ValueError for logits of the whole vocabulary: every rank would add all their exponentials to the sum."""
    config = parallel_state.find_config()
    if config is not None and logits.shape[-1] == config.model_config.vocab_size:
        raise ValueError(
            f"VocabParallelCrossEntropy: logits {list(logits.shape)} are of the whole vocabulary: give it "
            f"parallel_logits=False, or have the model leave them cut (parallel_output=True, gather_output=False)"
        )
