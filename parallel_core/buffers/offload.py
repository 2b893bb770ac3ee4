"""Which of a rank's optimizer states are kept elsewhere than on its device."""

from collections.abc import Sequence

from parallel_core.buffers.layout import BufferPlan, Span


def offloaded(plan: BufferPlan, owned: Sequence[Span], fraction: float) -> tuple[list[Span], list[Span]]:
    """What of the owned spans is kept elsewhere, and the rest; cut between parameters.

    The first is at least that fraction of all elements, and less without its last parameter.
    """
    elsewhere: list[Span] = []
    rest: list[Span] = []
    wanted, before = fraction * sum(span.size for span in owned), 0
    for span in owned:
        edges = [span.start, *(e.start for e in plan.entries if span.start < e.start < span.stop), span.stop]
        cut = next((edge for edge in edges if before + edge - span.start >= wanted), span.stop)
        if span.start < cut:
            elsewhere.append(Span(span.start, cut))
        if cut < span.stop:
            rest.append(Span(cut, span.stop))
        before += span.size
    return elsewhere, rest
