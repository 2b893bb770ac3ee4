"""A written checkpoint is read again, and must be the model that was written: its settings, and every bit of it."""

from __future__ import annotations

from collections.abc import Iterator

from parallel_core.checkpoint import networks
from parallel_core.checkpoint.convert.model import Model, is_table
from parallel_core.checkpoint.lazy import LazyTensor, equal_bits
from parallel_core.config.serialise import config_of


def differences(written: Model, found: Model, *, states: bool) -> list[str]:
    """What differs: settings of the network, and tensors (of the rows of the vocabulary, those of ids)."""
    return list(_differences(written, found, states))


def _differences(written: Model, found: Model, states: bool) -> Iterator[str]:
    configs = [config_of(model.settings) for model in (written, found)]
    for path, _, then, now in networks.differences(*configs):
        yield f"{path}: {then} became {now}"
    before = dict(written.all_tensors() if states else written.weights.items())
    after = dict(found.all_tensors() if states else found.weights.items())
    for name in before.keys() ^ after.keys():
        yield f"{name}: only in the {'source' if name in before else 'target'}"
    ids = written.unpadded_vocab_size
    for name in before.keys() & after.keys():
        one, other = (_of_ids(tensor, ids) if is_table(name) else tensor for tensor in (before[name], after[name]))
        if (one.shape, one.dtype) != (other.shape, other.dtype):
            yield f"{name}: {list(one.shape)} {one.dtype} became {list(other.shape)} {other.dtype}"
        elif not equal_bits(one.read(), other.read()):
            yield f"{name}: its values changed"


def _of_ids(tensor: LazyTensor, ids: int) -> LazyTensor:
    return tensor.with_length(min(ids, tensor.shape[0]))
