"""Several of MindSpore's operators compiled into one launch, as Megatron's decorator `jit_fuser` asks PyTorch to.

A launch takes the calling thread 15 - 40 us whatever it computes; a compiled function of ten operators takes about 50.
Compiled and not, the same kernels run and give the same bits, so it does not matter when a function is compiled.

MindSpore's public `jit` spends as much at each call on finding what it compiled as a launch takes. So its compiler is
asked here, once for each kind of arguments, and what it made is called. This is the one file that names it.
"""

import time
from collections import Counter
from collections.abc import Callable, Hashable
from functools import update_wrapper
from typing import Any

from mindspore import Tensor
from mindspore.graph.api import JitExecutor_, _JitExecutor

from pynative.autograd import finish_launches, is_recording

CALLS_BEFORE_COMPILING = 64
"""Compiling takes as long as a thousand launches. What is called seldom with the same shapes is not worth it: the rows
of an expert, a text that grows while it is generated."""

MOST_COMPILED = 16
"""Kinds of arguments that one function is compiled for: each keeps 0.2 MB for ever, and until its next call the tensors
that it was given last."""

MOST_COUNTED = 256
"""Kinds of arguments whose calls are counted; then counting begins anew."""

_enabled = False


def use(enabled: bool) -> None:
    """Whether functions of this process are compiled from now on."""
    global _enabled
    _enabled = enabled


class jit_fuser:
    """Decorate a function of tensors and constants, of which a call without the tape is compiled when it comes often.

    The tensors' shapes and types and the constants' values are the kind of a call. The function may use what
    MindSpore's compiler understands: operators, shapes, constants. It returns a tensor or a tuple of tensors.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.calls: Counter[Hashable] = Counter()
        self.compiled: dict[Hashable, str] = {}
        self._compiler: _JitExecutor | None = None
        update_wrapper(self, function)

    def __call__(self, *args: Any) -> Any:
        if not _enabled or is_recording():
            return self.function(*args)
        kind = tuple([(x.shape, id(x.dtype)) if isinstance(x, Tensor) else x for x in args])
        phase = self.compiled.get(kind)
        if phase is None:
            return self._counted(kind, args)
        results = _EXECUTOR(tuple([x for x in args if isinstance(x, Tensor)]), phase)
        finish_launches()  # Else it still runs, where MindSpore launched something before `device.initialize`.
        return results

    def _counted(self, kind: Hashable, args: tuple[Any, ...]) -> Any:
        has_entries = all(x.size for x in args if isinstance(x, Tensor))  # The compiler takes no part of nothing.
        if has_entries and len(self.compiled) < MOST_COMPILED:
            if len(self.calls) >= MOST_COUNTED:
                self.calls.clear()
            self.calls[kind] += 1
            if self.calls[kind] >= CALLS_BEFORE_COMPILING:
                self.compiled[kind] = self._compile(args)
        return self.function(*args)

    def _compile(self, args: tuple[Any, ...]) -> str:
        """MindSpore's name of what it compiles for arguments like these, of which it keeps none."""
        like = [Tensor(shape=x.shape, dtype=x.dtype) if isinstance(x, Tensor) else x for x in args]
        if self._compiler is None:  # One for all kinds: of another one for the same function MindSpore would warn.
            self._compiler = _JitExecutor(self.function, time.time_ns())
        return self._compiler.compile(self.function.__name__, *like)


_EXECUTOR = JitExecutor_.get_instance()
