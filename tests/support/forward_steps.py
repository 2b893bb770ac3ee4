"""A user's own forward step, as Megatron's scripts write them."""

from tests.support.layouts import train


def own_batch(data_iterator) -> dict:
    """The next micro-batch, cut to this rank's shard by get_batch_on_this_cp_rank, as a script does."""
    from mindspore import Tensor

    from pynative.context_parallel import get_batch_on_this_cp_rank

    return get_batch_on_this_cp_rank({name: Tensor(array) for name, array in next(data_iterator).items()})


def own_sums(data_iterator, model):
    """Megatron's forward step whose loss function returns (sum of the losses, number of tokens, dict) over this rank's
    pieces."""
    from pynative import parallel_state
    from pynative.tensor_parallel.cross_entropy import vocab_parallel_cross_entropy

    batch = own_batch(data_iterator)
    labels, mask = batch.pop("labels"), batch.pop("loss_mask")

    def sums(logits):
        losses = vocab_parallel_cross_entropy(logits, labels, parallel_state.get_tensor_model_parallel_group())
        total, tokens = (losses * mask).sum(), mask.sum()
        return total, tokens, {"lm loss": (total, tokens)}

    return model(**batch), sums


def train_on_sums(backend, flags: str) -> tuple:
    return train(backend, flags, forward_step_func=own_sums)
