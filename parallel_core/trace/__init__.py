"""A recorded or predicted step as a value: spans of ranks on one clock; its file for Chrome and Perfetto, its sums."""

from parallel_core.trace.chrome import chrome_json, read_chrome
from parallel_core.trace.span import Kind, Span
from parallel_core.trace.summary import StepSummary, summary

__all__ = ["Kind", "Span", "StepSummary", "chrome_json", "read_chrome", "summary"]
