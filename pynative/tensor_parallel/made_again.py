"""Tensors that are not kept for a backward, because the part of the forward that made them runs again (see
`recompute`).

Such a tensor has the attribute `made_again`, a function that recomputes it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import mindspore
from mindspore import Tensor, saved_tensors_hooks

from pynative import kernels
from pynative.tape import autograd

Kept = Callable[[], Any]
"""A function that returns an input for the second run of a part."""


def made_again(tensor: Any) -> Kept | None:
    """The function that recomputes a tensor which is not kept; None: the tensor is kept as usual."""
    return getattr(tensor, "made_again", None)


def fork_made_again(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """The tensor for each of two consumers, whose gradients are added (`kernels.fork`). If the tensor is
    recomputed, each consumer recomputes it by itself: perhaps only one of them asks (a linear whose weight is frozen
    does not), and a result kept for the other would stay in memory."""
    ways, again = kernels.fork(tensor), made_again(tensor)
    if again is not None:
        for way in ways:
            way.made_again = again
    return ways


def cast_made_again(tensor: Tensor, dtype: mindspore.Type) -> Tensor:
    """`kernels.cast`; the result of a tensor that is recomputed is recomputed, too."""
    result, again = kernels.cast(tensor, dtype), made_again(tensor)
    if again is not None and result is not tensor:
        result.made_again = partial(_cast_anew, again, dtype)
    return result


def _cast_anew(again: Kept, dtype: mindspore.Type) -> Tensor:
    with autograd.no_grad():
        return kernels.cast(again(), dtype)


def detached_made_again(tensor: Tensor) -> Tensor:
    """The tensor detached from the graph; if it is recomputed, so is the result."""
    without_past, again = autograd.detached(tensor), made_again(tensor)
    if again is not None:
        without_past.made_again = again
    return without_past


@contextmanager
def left_out(*tensors: Tensor) -> Iterator[None]:
    """Have operators within the block save, in place of each of `tensors` that is recomputed, the function that
    recomputes it; all other tensors are saved as usual."""
    ways = {(tensor.data_ptr(), tensor.size): again for tensor in tensors if (again := made_again(tensor)) is not None}

    def pack(saved: Tensor) -> Tensor | Kept:
        """The function that recomputes a saved tensor in the shape in which it was saved; any other tensor, or one that
        is not contiguous, itself."""
        again = ways.get((saved.data_ptr(), saved.size)) if saved.is_contiguous() else None
        shape = saved.shape
        return saved if again is None else lambda: again().reshape(shape)

    if not ways:
        yield
        return
    with saved_tensors_hooks(pack, lambda kept: kept if isinstance(kept, Tensor) else kept()):
        yield
