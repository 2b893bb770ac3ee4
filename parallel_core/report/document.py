"""A page as one HTML file that needs no network."""

import html as markup
import json
from dataclasses import asdict
from importlib.resources import files
from string import Template

from parallel_core.report.parts import Page


def as_json(page: Page) -> str:
    """The page as JSON, as the server sends it and as the HTML file holds it."""
    return json.dumps(asdict(page), separators=(",", ":"), allow_nan=False)


def html(page: Page, library: str, watched: bool = False) -> str:
    """The page as the text of an HTML file. library: the JavaScript that draws plots (plotly.js). watched: whether the
    page asks its server for new data.

    The texts of runs stand in the file as JSON alone, without any `<`, and its script makes text of them, never markup.
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
