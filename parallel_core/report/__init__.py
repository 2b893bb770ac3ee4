"""Figures, events and traces in the folders of runs, as one page: in sections; then JSON, and HTML around it."""

from parallel_core.report.document import html
from parallel_core.report.page import page_of
from parallel_core.report.run import Run

__all__ = ["Run", "html", "page_of"]
