"""HuggingFace's chat templates: jinja2, in the surroundings that transformers gives them."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from parallel_core.data.tokenizers.library import library


def render(template: str, variables: Mapping[str, Any]) -> str:
    """The text of a conversation. Raises ValueError for a template that is damaged or refuses the conversation,
    ConfigError without jinja2."""
    jinja2 = library("HuggingFaceTokenizer", "jinja2")
    sandbox = library("HuggingFaceTokenizer", "jinja2.sandbox")
    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals.update(raise_exception=_refuse, strftime_now=lambda form: datetime.now().strftime(form))
    # What transformers gives every template: a template asks whether they are there by their truth.
    usual = {"tools": None, "documents": None}
    try:
        return environment.from_string(template).render(**usual, **variables)
    except (jinja2.TemplateError, TypeError, ValueError, KeyError, ArithmeticError) as error:
        raise ValueError(f"the chat template does not take this conversation ({error})") from error


def _refuse(message: str) -> None:
    raise ValueError(message)


def _to_json(value: Any, indent: int | None = None, **more: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent, **more)
