"""Options that do nothing under certain settings: each row has options, the condition and the reason.

They are no findings. Options that never have an effect: `row.ALWAYS`.
"""

from collections.abc import Iterable
from contextlib import suppress

from parallel_core.config.all import AllConfig
from parallel_core.config.base import Unjudged
from parallel_core.no_effect import experts, layout, network, recompute, training

beyond_the_stages = recompute.beyond_the_stages

ROWS = (*network.ROWS, *experts.ROWS, *training.ROWS, *layout.ROWS, *recompute.ROWS)
"""All rows, by subject. If several hold for an option, the first one's reason counts."""


def without_effect(config: AllConfig, given: Iterable[str], *, at_any_length: bool = False) -> dict[str, str]:
    """Path -> "no effect: " and the reason, for each of the options `given` (full paths) for which a row of `ROWS` has
    a condition that holds. `row.ALWAYS` is not looked at. The configuration must be one without findings.

    at_any_length: leave out conditions that depend on the length of a run's sequences.
    """
    rest = {*given}
    found: dict[str, str] = {}
    for row in ROWS:
        paths = rest.intersection(row.paths)
        with suppress(Unjudged):
            if paths and not (at_any_length and row.of_lengths) and row.is_idle(config):
                found |= dict.fromkeys(paths, f"no effect: {row.reason}")
                rest -= paths
    return found
