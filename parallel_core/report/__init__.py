"""One page about runs, made of the figures, events and traces in their folders: a value, JSON of it, HTML with that."""

from parallel_core.report.document import html
from parallel_core.report.page import page_of
from parallel_core.report.run import Run

__all__ = ["Run", "html", "page_of"]
