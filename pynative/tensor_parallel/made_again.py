"""Tensors that are not kept for a backward because a part that gave them runs again (see `recompute`)."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import mindspore
from mindspore import Tensor, saved_tensors_hooks

from pynative import kernels
from pynative.tape import autograd

Kept = Callable[[], Any]
"""Gives an input for the second run."""


def made_again(tensor: Any) -> Kept | None:
    """A function that recomputes a tensor that is not saved; none: the tensor is saved."""
    return getattr(tensor, "made_again", None)


def fork_made_again(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """`kernels.fork`, of a tensor that may be one that is recomputed: for each way by itself, since nobody knows
    whether both will ask (a linear whose weight is frozen does not), and what waited for the second would stay."""
    ways, again = kernels.fork(tensor), made_again(tensor)
    if again is not None:
        for way in ways:
            way.made_again = again
    return ways


def cast_made_again(tensor: Tensor, dtype: mindspore.Type) -> Tensor:
    """`kernels.cast`, of a tensor that may be one that is recomputed: so is the result then."""
    result, again = kernels.cast(tensor, dtype), made_again(tensor)
    if again is not None and result is not tensor:
        result.made_again = partial(_cast_anew, again, dtype)
    return result


def _cast_anew(again: Kept, dtype: mindspore.Type) -> Tensor:
    with autograd.no_grad():
        return kernels.cast(again(), dtype)


def detached_made_again(tensor: Tensor) -> Tensor:
    """The tensor without its past, which may be one that is recomputed."""
    without_past, again = autograd.detached(tensor), made_again(tensor)
    if again is not None:
        without_past.made_again = again
    return without_past


@contextmanager
def left_out(*tensors: Tensor) -> Iterator[None]:
    """Operators within keep those of the tensors that are recomputed as functions that recompute them."""
    ways = {(tensor.data_ptr(), tensor.size): again for tensor in tensors if (again := made_again(tensor)) is not None}

    def pack(saved: Tensor) -> Tensor | Kept:
        """An operator may save what it is given in another shape; what it has turned stays."""
        again = ways.get((saved.data_ptr(), saved.size)) if saved.is_contiguous() else None
        shape = saved.shape
        return saved if again is None else lambda: again().reshape(shape)

    if not ways:
        yield
        return
    with saved_tensors_hooks(pack, lambda kept: kept if isinstance(kept, Tensor) else kept()):
        yield
