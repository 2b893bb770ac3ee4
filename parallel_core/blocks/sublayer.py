"""The interface of sublayers: blocks between a norm of the residual stream and the addition to it, such as
attention."""

from typing import ClassVar

from parallel_core.blocks.block import Block
from parallel_core.blocks.micro_batch import MicroBatch
from parallel_core.recompute.parts import Part


class Sublayer(Block):
    """A mixer of positions, or a feed-forward block: from normed hidden states to the addend of the residual stream."""

    called: ClassVar[str | None] = None
    """The name by which users ask for its parts; None: the name of its field in the layer."""
    collectives: ClassVar[tuple[str, ...]] = ()
    """Names of its linears whose tensor-parallel collectives need not run again (--no-mp-comm-recompute)."""

    @property
    def reads_tokens(self) -> bool:
        """Whether it reads the ids of its tokens."""
        return False

    @property
    def first_linears(self) -> tuple[str, ...]:
        """Names, in order, of the linears that are the only readers of its input; the first that needs it keeps it.
        Empty where others read the input, too."""
        return ()

    def kept_for_others(self, micro_batch: MicroBatch) -> int:
        """Bytes that later layers read as well, and that are kept even where this sublayer is recomputed."""
        return 0

    def parts(self) -> tuple[Part, ...]:
        """The parts that may be recomputed: the whole, and the parts in it, in their order."""
        return (Part("", holders=self.first_linears, begins=True),)
