"""DualPipe-V, a folded pipeline whose steady state is pairs: a forward of one chunk beside a backward of the other.

DualPipe (DeepSeek-V3, 2024) sends micro-batches through a pipeline from both ends; of that, DualPipe-V is the half that
gives each stage two chunks of its own ("Cut-in-half", Sea AI Lab, 2025; `dualpipev.py` of deepseek-ai/DualPipe, whose
eight steps are those below; MindSpeed's `--schedules-method dualpipev`).
"""

from collections import deque
from collections.abc import Iterator

from parallel_core.schedules.actions import Backward, Forward, Ordered, Pair, WeightGrad
from parallel_core.schedules.folded import CHUNKS

DUALPIPE_V = "dualpipev"
"""The name of DualPipe-V in MindSpeed's --schedules-method."""


def fewest_micro_batches(stages: int) -> int:
    """The fewest micro-batches of DualPipe-V, 2p - 1 on p stages: so many forwards of chunk 0 the first stage runs
    before its steady state."""
    return 2 * stages - 1


def dualpipe_v(
    stages: int, micro_batches: int, chunks: int = CHUNKS, group_size: int | None = None
) -> list[list[Ordered]]:
    """DualPipe-V of p stages: at most 2p + 1 activations of a chunk on a stage; and a bubble of (p-1)(F&B + B - 3W), if
    gradients of the input take as long as a forward, those of weights no longer, and a pair as long as its two halves.
    F&B is the time of a pair, B of a whole backward and W of gradients of weights, each of one chunk.

    Backwards before the steady state, and some at the end of the drain, leave gradients of weights to a `WeightGrad`.
    group_size: ignored. Raises AssertionError for another number of chunks than 2, and for fewer micro-batches than
    `fewest_micro_batches`.
    """
    assert chunks == CHUNKS, f"a folded pipeline has {CHUNKS} chunks on a stage, not {chunks}"
    assert micro_batches >= fewest_micro_batches(stages), f"{micro_batches} micro-batches are too few"
    return [list(_of_stage(stage, stages, micro_batches)) for stage in range(stages)]


def _of_stage(stage: int, stages: int, micro_batches: int) -> Iterator[Ordered]:
    behind, own, numbers = stages - 1 - stage, stage + 1, _Numbers()
    for _ in range(2 * behind):
        yield numbers.forward(0)
    for _ in range(own):
        yield numbers.forward(0)
        yield numbers.forward(1)
    for _ in range(behind):
        yield numbers.backward(1, split=True)
        yield numbers.weights()
        yield numbers.forward(1)
    steady = micro_batches - 2 * stages + own
    for round_ in range(steady):
        if behind or round_:
            yield numbers.pair(0, 1)
        else:  # every stage waits for this forward of the last one: no backward runs beside it
            yield numbers.forward(0)
            yield numbers.backward(1)
        yield numbers.pair(1, 0)
    for _ in range(behind):
        yield numbers.backward(1)
        yield numbers.pair(1, 0)
    for number in range(2 * own):
        yield numbers.backward(1 - number % 2, split=number >= own)
    for _ in range(behind):
        yield numbers.weights()
        yield numbers.backward(0, split=True)
    for _ in range(own):
        yield numbers.weights()


class _Numbers:
    """The next computation of each kind on a stage: micro-batches are counted for each kind and chunk."""

    def __init__(self) -> None:
        self._forwards, self._backwards = [0] * CHUNKS, [0] * CHUNKS
        self._left: deque[WeightGrad] = deque()

    def forward(self, chunk: int) -> Forward:
        self._forwards[chunk] += 1
        return Forward(self._forwards[chunk] - 1, chunk)

    def backward(self, chunk: int, split: bool = False) -> Backward:
        """The next backward of a chunk. split: whether its gradients of weights come later, from `weights`."""
        action = Backward(self._backwards[chunk], chunk)
        self._backwards[chunk] += 1
        if split:
            self._left.append(WeightGrad(action.micro_batch, chunk))
        return action

    def pair(self, forward: int, backward: int) -> Pair:
        return Pair(self.forward(forward), self.backward(backward))

    def weights(self) -> WeightGrad:
        """The gradients of weights of the earliest split backward that has none yet."""
        return self._left.popleft()
