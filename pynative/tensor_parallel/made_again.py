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
"""A function that returns a value for the backward, which was kept or is computed anew."""


def made_again(tensor: Any) -> Kept | None:
    """The function that recomputes a tensor which is not kept; None: the tensor is kept as usual."""
    return getattr(tensor, "made_again", None)


def fork_made_again(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Two tensors equal to `tensor`, one for each of two consumers; the backward adds the gradients of the two
    (`kernels.fork`). If `tensor` is recomputed, so are both, by the same function."""
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
    """Have operators within the block save, in place of those of `tensors` that are recomputed, a function that
    recomputes them. A tensor that is not contiguous, such as a transposed view, is saved as usual."""
    ways = {(tensor.data_ptr(), tensor.size): again for tensor in tensors if (again := made_again(tensor)) is not None}

    def pack(saved: Tensor) -> Tensor | Kept:
        """A function that recomputes the tensor `saved` in its present shape, if `saved` is contiguous and has the
        address and size of a recomputed one of `tensors`; else `saved` itself."""
        again = ways.get((saved.data_ptr(), saved.size)) if saved.is_contiguous() else None
        shape = saved.shape
        return saved if again is None else lambda: again().reshape(shape)

    if not ways:
        yield
        return
    with saved_tensors_hooks(pack, lambda kept: kept if isinstance(kept, Tensor) else kept()):
        yield
