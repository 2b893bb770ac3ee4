"""The section of a page about the load of experts by layer."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from parallel_core.report.parts import Heat, Section, Table, figure
from parallel_core.report.run import Run
from parallel_core.report.thin import means, plain

COLUMN = re.compile(r"expert_load/(\d{1,6})")
BINS = 100
EVEN = "1 is an even share."


def section(runs: Sequence[Run]) -> Section | None:
    """The section with up to two heat maps for each run: the load of each layer's busiest expert by step, and the load
    of all experts in the run's last "experts" event; each only if the run has finite figures for it. None if no run has
    any."""
    plots = [plot for number, run in enumerate(runs) for plot in (*_over_steps(number, run), *_newest(number, run))]
    return Section("experts", "Load of experts", EVEN, list(plots)) if plots else None


def _over_steps(number: int, run: Run) -> Iterator[Heat]:
    layers = sorted(int(match[1]) for name in run.figures.names() if (match := COLUMN.fullmatch(name)))
    steps = run.figures.of("step")
    if not layers or not len(steps):
        return
    values = np.stack([run.figures.of(f"expert_load/{layer}") for layer in layers])
    bins = min(BINS, len(steps))
    z = means(values, bins)
    if not np.isfinite(z).any():
        return
    x = means(steps[None], bins)[0]
    title = f"{run.name}: tokens of each layer's busiest expert"
    rows = [
        [str(layer), *(figure(value) for value in (row[0], np.nanmean(row), np.nanmax(row), row[-1]))]
        for layer, row in zip(layers, z, strict=True)
        if np.isfinite(row).any()
    ]
    table = Table(f"{title}: figures", ["layer", "first", "mean", "largest", "last"], rows)
    text = f"{title}, by layer and step. {EVEN} Largest: {figure(float(np.nanmax(z)))}."
    yield Heat(
        f"load-{number}",
        title,
        "step",
        "layer",
        text,
        plain(x),
        [str(layer) for layer in layers],
        [plain(row, 4) for row in z],
        table,
    )


def _newest(number: int, run: Run) -> Iterator[Heat]:
    event = (run.events.get("experts") or [{}])[-1]
    shares = dict(_shares(event.get("tokens")))
    if not shares:
        return
    title = f"{run.name}: tokens of each expert in step {event.get('step')}"
    most = max(map(len, shares.values()))
    z = [plain([*row, *[float("nan")] * (most - len(row))]) for row in shares.values()]
    rows = [
        [layer, figure(min(row)), figure(max(row)), str(row.index(max(row))), str(row.count(0.0))]
        for layer, row in shares.items()
    ]
    columns = ["layer", "smallest share", "largest share", "busiest expert", "experts without a token"]
    text = f"{title}, by layer and expert. {EVEN} Largest: {figure(max(map(max, shares.values())))}."
    x = list(range(most))
    yield Heat(
        f"share-{number}", title, "expert", "layer", text, x, list(shares), z, Table(f"{title}: figures", columns, rows)
    )


def _shares(tokens: Any) -> Iterator[tuple[str, list[float]]]:
    """(layer, each expert's number of tokens divided by the layer's mean) for every layer of an event's tokens by
    layer."""
    for layer, counts in tokens.items() if isinstance(tokens, Mapping) else ():
        if isinstance(counts, list) and all(isinstance(n, int) for n in counts) and sum(counts) > 0:
            yield layer, [count * len(counts) / sum(counts) for count in counts]
