"""Before the first weight is written, all ranks agree that every name and shape fits on every one of them."""

from collections.abc import Collection, Sequence
from contextlib import suppress

import numpy as np
from mindspore import Tensor

from pynative import parallel_state
from pynative.collectives import PeerLost


def agree(
    offered: Sequence[str], taken: Collection[str], problems: Sequence[str], source: str, *, all_used: bool = True
) -> list[str]:
    """The names that `source` offers and no rank takes. Raise ValueError on every rank if any rank has a problem or,
    with `all_used`, if there are such names.

    `offered` is the same list on all ranks. `taken` are the names that this rank's model has.
    """
    findings = [int(name in taken) for name in offered]
    findings.append(len(problems))
    counts = parallel_state.get_world_group().all_reduce(Tensor(np.array(findings, np.int32))).asnumpy()
    unused = [name for name, count in zip(offered, counts[:-1], strict=True) if count == 0]
    all_problems = [*problems, *(f"{name}: {source} has it, the model does not" for name in unused if all_used)]
    if not all_problems and counts[-1]:
        all_problems = ["another rank's part of the model does not fit; it says why"]
    if all_problems:
        with suppress(PeerLost):  # Who is first to raise would otherwise keep the one at fault from saying why.
            parallel_state.get_world_group().barrier()
        raise ValueError(f"{source} does not fit, nothing was loaded:\n" + "\n".join(all_problems))
    return unused
