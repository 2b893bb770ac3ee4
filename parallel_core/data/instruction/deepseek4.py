"""DeepSeek V4's format of a conversation: thoughts, tool calls and tool results with its own marks."""

import json
import re
from typing import Any

from parallel_core.data.instruction.conversations import Conversation, Message
from parallel_core.data.instruction.records import BadRecord
from parallel_core.data.instruction.tool_texts import TEXTS

BEGIN, END, USER, ASSISTANT, _MARK = (
    TEXTS[f"deepseek4_{name}"] for name in ("begin", "end", "user", "assistant", "mark")
)
THINK, THOUGHT = "<think>", "</think>"
_INLINE_THOUGHT = re.compile(r"\s*<think>\s*(.*?)\s*</think>\s*", re.DOTALL)


def written(conversation: Conversation, thinks: bool, drops_thoughts: bool) -> list[str]:
    """The texts of a conversation, sources and targets in turn, up to its last answer.

    thinks: answers begin with a thought, maybe empty. drops_thoughts: thoughts before the last question, or result of a
    tool, are left out, unless there are tools. Raises BadRecord for an answer that follows an answer, for tools that
    are no JSON, or a list with an entry that is no object with a function; for tool calls, unless empty, that are no
    list of objects whose function has name and arguments, for an id of a tool call that is a list or an object, for
    arguments that are JSON, but no object, and for a thought, unless empty, that is to be written and is no text. Blank
    tools, and tools that are JSON, but no list, count as none.
    """
    tools = _tools(conversation.tools)
    turns = _turns(conversation.messages)
    last_question = max((place for place, turn in enumerate(turns) if turn["role"] == "user"), default=-1)
    drops = drops_thoughts and thinks and not tools
    texts: list[str] = []
    source = BEGIN + conversation.system + _described(tools)
    for place, turn in enumerate(turns):
        has_thought = thinks and not (drops and place < last_question)
        if turn["role"] == "assistant":
            if not source:
                raise BadRecord(f"roles out of order: answer {place} follows an answer")
            texts += [source, _answer(turn, has_thought)]
            source = ""
            continue
        is_user = turn["role"] == "user"
        source += USER + "\n\n".join(turn["parts"]) if is_user else turn["content"]
        is_answered = place + 1 == len(turns) or turns[place + 1]["role"] == "assistant"
        if is_user and is_answered:
            source += ASSISTANT + (THINK if has_thought else THOUGHT)
    return texts


def _tools(tools: str) -> list[dict[str, Any]]:
    """The functions' schemas in a JSON text of tools; empty for "" and for JSON that is no list. Raises BadRecord for
    other texts."""
    if not tools.strip():
        return []
    try:
        given = json.loads(tools)
        return [tool["function"] for tool in given] if isinstance(given, list) else []
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise BadRecord(f"tools must be OpenAI's, a list of objects with a function each: {tools!r}"[:200]) from error


def _described(tools: list[dict[str, Any]]) -> str:
    schemas = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return TEXTS["deepseek4_tools"].replace("{tools}", schemas) if tools else ""


def _turns(messages: list[Message]) -> list[Message]:
    """The messages as turns: questions and results of tools that follow one another are parts of one turn of the
    user."""
    turns: list[Message] = []
    calls: dict[str, int] = {}
    for message in messages:
        role = message["role"]
        if role in ("user", "observation", "function"):
            if not turns or turns[-1]["role"] != "user":
                turns.append({"role": "user", "parts": [], "results": []})
            _add_part(turns[-1], message)
        else:
            turns.append(_with_thought(message) if role == "assistant" else message)
    for turn in turns:
        if turn.get("tool_calls"):
            calls = {_id(call, "id"): place for place, call in enumerate(_calls(turn)) if call.get("id")}
        elif turn.get("results"):
            _put_in_order(turn, calls)
    return turns


def _add_part(turn: Message, message: Message) -> None:
    if message["role"] == "user":
        turn["parts"].append(message["content"])
    else:
        turn["results"].append((len(turn["parts"]), _id(message, "tool_call_id")))
        turn["parts"].append(f"<tool_result>{message['content']}</tool_result>")


def _id(value: dict[str, Any], key: str) -> Any:
    """The id under `key`; "" if there is none."""
    found = value.get(key, "")
    if isinstance(found, list | dict):
        raise BadRecord(f"{key} of a tool call must be a text: {found!r}"[:200])
    return found


def _put_in_order(turn: Message, calls: dict[str, int]) -> None:
    """Put a turn's results of tools, in place, into the order of the calls that they answer."""
    places = [place for place, _ in turn["results"]]
    ordered = sorted(turn["results"], key=lambda result: calls.get(result[1], 0))
    parts = [turn["parts"][place] for place, _ in ordered]
    for place, part in zip(places, parts, strict=True):
        turn["parts"][place] = part


def _with_thought(message: Message) -> Message:
    """The message with the thought at the beginning of its content, if there is one, moved to `reasoning_content`."""
    thought = _INLINE_THOUGHT.match(message["content"])
    if "reasoning_content" in message or not thought:
        return message
    return {**message, "reasoning_content": thought[1], "content": message["content"][thought.end() :]}


def _calls(turn: Message) -> list[dict[str, Any]]:
    calls = turn["tool_calls"]
    if not isinstance(calls, list) or not all(
        isinstance(call, dict)
        and isinstance(call.get("function"), dict)
        and {"name", "arguments"} <= set(call["function"])
        for call in calls
    ):
        raise BadRecord(f"tool_calls must be a list of functions with name and arguments: {calls!r}"[:200])
    return calls


def _answer(turn: Message, has_thought: bool) -> str:
    thought = (turn.get("reasoning_content") or "") if has_thought else ""
    if not isinstance(thought, str):
        raise BadRecord(f"reasoning_content must be a text: {thought!r}"[:200])
    calls = ""
    if turn.get("tool_calls"):
        lines = [
            f'<{_MARK}invoke name="{call["function"]["name"]}">\n{_arguments(call["function"]["arguments"])}\n'
            f"</{_MARK}invoke>"
            for call in _calls(turn)
        ]
        calls = f"\n\n<{_MARK}tool_calls>\n" + "\n".join(lines) + f"\n</{_MARK}tool_calls>"
    return thought + THOUGHT * has_thought + turn["content"] + calls + END


def _arguments(arguments: Any) -> str:
    try:
        given = json.loads(arguments)
    except (ValueError, TypeError, RecursionError):
        given = {"arguments": arguments}
    if not isinstance(given, dict):
        raise BadRecord(f"arguments of a tool call must be an object: {arguments!r}"[:200])
    return "\n".join(_parameter(name, value) for name, value in given.items())


def _parameter(name: str, value: Any) -> str:
    is_text = isinstance(value, str)
    text = value if is_text else json.dumps(value, ensure_ascii=False)
    return f'<{_MARK}parameter name="{name}" string="{str(is_text).lower()}">{text}</{_MARK}parameter>'
