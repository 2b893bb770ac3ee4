"""A hook of mkdocs: the API reference is written anew before the site is built."""

import runpy
from pathlib import Path
from typing import Any


def on_pre_build(config: Any, **_: Any) -> None:
    """Write docs/api.md from the docstrings, if they say something else now."""
    page = Path(config["docs_dir"]) / "api.md"
    text = runpy.run_path(str(page.with_name("make_api.py")))["page"]()
    if not page.exists() or page.read_text(encoding="utf-8") != text:
        page.write_text(text, encoding="utf-8")
