"""The texts by which templates describe tools and write function calls; the texts themselves stand in `texts.json`."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from parallel_core.data.instruction.records import BadRecord

TEXTS: dict[str, str] = json.loads(Path(__file__).with_name("texts.json").read_bytes())
"""Name -> text around tools, with `{...}` as placeholders."""

_WRAPPED = {"qwen": "qwen_tools", "qwen3": "qwen_tools"}
"""`tool_format` that describes each tool by a line of JSON -> name of the text around these lines."""
_THOUGHT = re.compile(r"<think>.*</think>", re.DOTALL)


def described(tools: str, tool_format: str) -> str:
    """The part of the system message that describes `tools`, a JSON text: by a line of JSON for each (qwen, qwen3) or
    in words (default); "" for an empty list and in any other format.

    Raises BadRecord with qwen and qwen3 for tools that are no JSON list of objects; these, and tools without a name or
    parameters, give "" in the format default.
    """
    if tool_format in _WRAPPED:
        given = parsed(tools)
        return TEXTS[_WRAPPED[tool_format]].replace("{tools}", "".join(map(_wrapped, given))) if given else ""
    try:
        return _in_words(parsed(tools)) if tool_format == "default" else ""
    except (BadRecord, KeyError, TypeError, AttributeError):
        return ""  # as in MindSpeed-LLM


def parsed(tools: str) -> list[dict[str, Any]]:
    """The tools in a JSON text. Raises BadRecord if they are no JSON list of objects."""
    try:
        given = json.loads(tools)
    except (ValueError, RecursionError) as error:
        raise BadRecord(f"tools are no JSON: {tools!r}"[:200]) from error
    if not isinstance(given, list) or not all(isinstance(tool, dict) for tool in given):
        raise BadRecord(f"tools must be a list of objects: are {tools!r}"[:200])
    return given


def _wrapped(tool: dict[str, Any]) -> str:
    whole = tool if tool.get("type") == "function" else {"type": "function", "function": tool}
    return "\n" + json.dumps(whole, ensure_ascii=False)


def _in_words(tools: Sequence[dict[str, Any]]) -> str:
    if not tools:
        return ""
    text = "".join(
        TEXTS["tool"]
        .replace("{name}", tool["name"])
        .replace("{description}", tool.get("description", ""))
        .replace("{arguments}", _parameters(tool["parameters"]))
        for tool in tools
    )
    names = ", ".join(tool["name"] for tool in tools)
    return TEXTS["default_tools"].replace("{names}", names).replace("{tools}", text)


def _parameters(parameters: dict[str, Any]) -> str:
    lines = ""
    for name, parameter in parameters["properties"].items():
        required = ", required" if name in parameters.get("required", []) else ""
        choices = f", should be one of [{', '.join(parameter['enum'])}]" if parameter.get("enum") else ""
        items = f", where each item should be {parameter['items'].get('type', '')}" if parameter.get("items") else ""
        kind, description = parameter.get("type", ""), parameter.get("description", "")
        lines += f"  - {name} ({kind}{required}): {description}{choices}{items}\n"
    return lines


def name_and_arguments(call: str) -> tuple[str, str]:
    """Name and arguments (as JSON) of a function call in JSON; "" and "" for a text that is none, as in MindSpeed-LLM's
    plain templates. Raises BadRecord for a name that is no text."""
    try:
        given = json.loads(call)
        name, arguments = given["name"], json.dumps(given["arguments"], ensure_ascii=False)
    except (ValueError, KeyError, TypeError, RecursionError):
        return "", ""
    if not isinstance(name, str):
        raise BadRecord(f"the name of a function call must be a text: {call!r}"[:200])
    return name, arguments


def function_calls(calls: str) -> str:
    """The text of function calls, given as JSON of one or a list, each between <tool_call> and </tool_call>; a thought
    before them stays.

    Raises BadRecord for other texts.
    """
    thought = _THOUGHT.search(calls)
    try:
        given = json.loads(calls.replace(thought.group(), "") if thought else calls)
        texts = [
            json.dumps({"name": call["name"], "arguments": call["arguments"]}, ensure_ascii=False)
            for call in (given if isinstance(given, list) else [given])
        ]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadRecord(f"function call is no JSON with name and arguments: {calls!r}"[:200]) from error
    return (thought.group() if thought else "") + "\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in texts)
