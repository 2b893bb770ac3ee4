"""A page as one HTML file, which needs no network unless it is watched."""

import html as markup
import json
from dataclasses import asdict
from importlib.resources import files
from string import Template

from parallel_core.report.parts import Page


def as_json(page: Page) -> str:
    """The page as JSON text. Raises ValueError for a number that is not finite."""
    return json.dumps(asdict(page), separators=(",", ":"), allow_nan=False)


def html(page: Page, library: str, watched: bool = False) -> str:
    """The page as the text of an HTML file. library: the JavaScript that draws plots (plotly.js). watched: whether the
    page asks its server for new data.

    The page stands in the file as JSON without any `<`; its title also as the document's, escaped. Raises ValueError
    for a number that is not finite.
    """
    return Template(_read("page.html")).substitute(
        title=markup.escape(page.title),
        style=_read("page.css"),
        data=as_json(page).replace("<", "\\u003c"),
        library=library,
        script=_read("page.js"),
        watched=str(watched).lower(),
    )


def _read(name: str) -> str:
    return (files("parallel_core.report") / name).read_text(encoding="utf-8")
