"""The page of one or several runs, as a value."""

from collections.abc import Sequence

from parallel_core.report import curves, experts, history, settings, timeline
from parallel_core.report.parts import Page
from parallel_core.report.run import Run


def page_of(runs: Sequence[Run]) -> Page:
    """The page of one or several runs: overview, learning, speed and events, and each further section for which any of
    them has data."""
    found = [
        history.overview(runs),
        *curves.sections(runs),
        experts.section(runs),
        timeline.section(runs),
        history.happened(runs),
        *settings.sections(runs),
    ]
    names = [run.name for run in runs]
    return Page(", ".join(names), names, [section for section in found if section])
