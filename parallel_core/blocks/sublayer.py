"""The interface of sublayers: blocks, such as attention, whose output is added to the residual stream."""

from typing import ClassVar

from parallel_core.blocks.block import Block
from parallel_core.blocks.micro_batch import MicroBatch
from parallel_core.recompute.parts import Part


class Sublayer(Block):
    """A mixer of positions, or a feed-forward block: from hidden states, as a norm gives them if there is one, to those
    that are added to the residual stream. called: the name by which users ask for its parts (None: that of its field in
    the layer); collectives: its linears whose tensor-parallel collectives need not run again."""

    called: ClassVar[str | None] = None
    """The name by which users ask for its parts; None: the name of its field in the layer."""
    collectives: ClassVar[tuple[str, ...]] = ()
    """Names of its linears whose tensor-parallel collectives need not run again (--no-mp-comm-recompute)."""

    @property
    def reads_tokens(self) -> bool:
        """Whether it is given the ids of the tokens, which recorded choices of experts may come with."""
        return False

    @property
    def first_linears(self) -> tuple[str, ...]:
        """Names, in order, of linears that read its input, the first of which that needs it keeps it for all readers.
        Empty where the input is kept elsewhere, as in a mixture of experts."""
        return ()

    def kept_for_others(self, micro_batch: MicroBatch) -> int:
        """Bytes that later layers read as well, and that are kept even where this sublayer is recomputed."""
        return 0

    def parts(self) -> tuple[Part, ...]:
        """The parts that may be recomputed; unless a subclass says otherwise, the whole alone."""
        return (Part("", holders=self.first_linears, begins=True),)
