"""The way from a row to a conversation: Alpaca's columns, ShareGPT's, OpenAI's and Hunyuan's lists of messages.

A record that MindSpeed-LLM leaves out raises `BadRecord`; one that it writes although something is wrong has that in
`doubt`.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from parallel_core.data.instruction.columns import Columns
from parallel_core.data.instruction.records import BadRecord, Row, text_under

Message = dict[str, Any]
"""A message: role (user, assistant, system, observation, function), content, and further keys of OpenAI's format."""


@dataclass
class Conversation:
    """A conversation: `prompt`, the messages before the last answer, and `responses`: that one answer, or the chosen
    and the rejected one where two are compared. tools: as JSON text; doubt: the error in the conversation if it is
    written all the same, such as several answers to one question, else ""; row: the row that it is of."""

    prompt: list[Message]
    responses: list[Message]
    system: str = ""
    tools: str = ""
    """The tools as JSON text; "": none."""
    doubt: str = ""
    """The error in the conversation, if it is written all the same; "": none."""
    row: Row = field(default_factory=dict)

    @property
    def messages(self) -> list[Message]:
        """The messages of `prompt` and then `responses`; for a conversation that `is_uneven` an empty question and an
        empty answer instead."""
        if self.is_uneven:
            return [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}]
        return self.prompt + self.responses

    @property
    def is_uneven(self) -> bool:
        """Whether `prompt` has an even number of messages, or `responses` is not exactly one."""
        return len(self.prompt) % 2 != 1 or len(self.responses) != 1


def of_alpaca(row: Row, columns: Columns) -> Conversation:
    """A conversation of Alpaca's columns: instruction and input are the prompt, output is the answer (several in a list
    are a `doubt`, as is an empty answer or question), history the turns before, system the system message. Raises
    BadRecord where the output is missing, null, an empty list or neither a text nor a list of texts, where history is
    neither missing, null nor a list of pairs of texts, and where another of these columns holds something other than
    text (there null, false, 0 and what is empty count as missing)."""
    conversation = _asked_by_alpaca(row, columns)
    output = row.get(columns.response) if columns.response else None
    if output is None or output == []:
        raise BadRecord(f"no answer: {columns.response!r} is missing or null")
    answers = output if isinstance(output, list) else [output]
    if not all(isinstance(answer, str) for answer in answers):
        raise BadRecord(f"{columns.response!r} must be a text: is {answers!r}"[:200])
    if len(answers) > 1:
        conversation.doubt = f"{len(answers)} answers: a conversation has one"
    elif not answers[0]:
        conversation.doubt = f"the answer is empty: {columns.response!r}"
    conversation.responses = [_answer(text) for text in answers]
    return conversation


def of_alpaca_pair(row: Row, columns: Columns) -> Conversation:
    """A conversation of Alpaca's columns, with a chosen and a rejected answer in place of the output, which is not
    read. Raises BadRecord where one of the two is no text, and for the other columns as `of_alpaca`."""
    answers = [text_under(row, columns.chosen), text_under(row, columns.rejected)]
    conversation = _asked_by_alpaca(row, columns)
    conversation.responses = [_answer(text) for text in answers]
    return conversation


def _asked_by_alpaca(row: Row, columns: Columns) -> Conversation:
    """The conversation of all of Alpaca's columns but the output's, without an answer yet; an empty question is a
    doubt."""
    prompt = [
        {"role": role, "content": text}
        for turn in _history(row, columns)
        for role, text in zip(("user", "assistant"), turn, strict=True)
    ]
    parts = [text_under(row, name) for name in (columns.prompt, columns.query) if name and row.get(name)]
    prompt.append({"role": "user", "content": "\n".join(parts)})
    system = text_under(row, columns.system) if columns.system and row.get(columns.system) else ""
    doubt = "" if parts else f"the question is empty: {columns.prompt!r}"
    return Conversation(prompt, [], system, doubt=doubt, row=row)


def of_sharegpt(row: Row, columns: Columns) -> Conversation:
    """A conversation of ShareGPT's messages: user (or observation) and assistant (or function call) in turn, after an
    optional system message (without one the text of the system column); messages without content are left out after
    that order is checked. Raises BadRecord where the column is no list of messages, is empty or has only one of the
    system, where they do not take turns, where an odd number is left, and for roles, contents, a system text or tools
    that are no text. No message left, or an empty last one, is a `doubt`."""
    system, messages = _opened(row, columns)
    turns = _in_turn(messages, columns)
    if len(turns) % 2:
        raise BadRecord(f"{len(turns)} messages: each question needs an answer")
    return _finished(turns[:-1], turns[-1:], system, _tools(row, columns), row)


def of_sharegpt_pair(row: Row, columns: Columns) -> Conversation:
    """A conversation of ShareGPT's messages, up to a question that has a chosen and a rejected answer. Raises BadRecord
    where an answer is missing or its content is no text, where an even number of messages is left, not an odd one, and
    else as `of_sharegpt`."""
    system, messages = _opened(row, columns)
    turns = _in_turn(messages, columns)
    if not len(turns) % 2:
        raise BadRecord(f"{len(turns)} messages: the last must be a question")
    tags = columns.tags
    answers = [_under(row, name) for name in (columns.chosen, columns.rejected)]
    if not all(isinstance(answer, dict) and isinstance(_under(answer, tags.content_tag), str) for answer in answers):
        raise BadRecord(f"no answers to compare: {columns.chosen!r} and {columns.rejected!r} must be messages")
    responses = [_answer(_under(answer, tags.content_tag)) for answer in answers if answer]
    return Conversation(turns, responses, system, _tools(row, columns), row=row)


def of_openai(row: Row, columns: Columns) -> Conversation:
    """A conversation of OpenAI's messages, with tool calls and reasoning: behind an optional system message (without
    one the text of the system column counts) the first is of user or system, the last of the assistant, others are of
    any known role; a missing content is "". Raises BadRecord for other roles, where the column is no list of messages,
    is empty or has only one of the system, for contents or a system text that are no text, and for tools that are
    neither text nor list nor object. An even number of messages before the last, or a last one with neither content nor
    tool calls, is a `doubt`."""
    system, messages = _opened(row, columns)
    turns = []
    for place, message in enumerate(messages):
        role = columns.tags.roles.get(_under(message, columns.tags.role_tag))
        if role is None:
            raise BadRecord(f"unknown role: {_under(message, columns.tags.role_tag)!r} in message {place}")
        content = _under(message, columns.tags.content_tag)
        kept = {
            key: message[key]
            for key in ("tool_calls", "tool_call_id", "reasoning_content")
            if message.get(key) is not None
        }
        turns.append({"role": role, "content": "" if content is None else _checked(content, place), **kept})
    if turns[0]["role"] not in ("user", "system"):
        raise BadRecord(f"the first message must be of user or system: is of {turns[0]['role']}")
    if turns[-1]["role"] != "assistant":
        raise BadRecord(f"the last message must be of assistant: is of {turns[-1]['role']}")
    return _finished(turns[:-1], turns[-1:], system, _tools(row, columns, also=list | dict), row)


def of_hunyuan(row: Row, columns: Columns) -> Conversation:
    """A conversation of Hunyuan's messages: system, user (or observation), assistant (or function call), again and
    again; messages without content are left out after that order is checked. Raises BadRecord where the column is no
    list of messages, for another order, where the number that is left is not 3, 6, ..., and for contents or tools that
    are no text."""
    messages, tags = _messages(row, columns), columns.tags
    turns = []
    for place, message in enumerate(messages):
        role = tags.roles.get(_under(message, tags.role_tag), "unknown")
        wanted = (("system",), ("user", "observation"), ("assistant", "function"))[place % 3]
        if role not in wanted:
            raise BadRecord(f"roles out of order: message {place} must be of {' or '.join(wanted)}, is of {role}")
        if (content := _under(message, tags.content_tag)) is not None:
            turns.append({"role": role, "content": _checked(content, place)})
    if not turns or len(turns) % 3:
        raise BadRecord(f"{len(turns)} messages: system, user and assistant take turns")
    return Conversation(turns[:-1], turns[-1:], tools=_tools(row, columns), row=row)


CONVERTERS: dict[str, Callable[[Row, Columns], Conversation]] = {
    "alpaca": of_alpaca,
    "alpaca_pair": of_alpaca_pair,
    "sharegpt": of_sharegpt,
    "sharegpt_pair": of_sharegpt_pair,
    "openai": of_openai,
    "hunyuan": of_hunyuan,
}


def _finished(prompt: list[Message], answers: list[Message], system: str, tools: str, row: Row) -> Conversation:
    conversation = Conversation(prompt, answers, system, tools, row=row)
    if conversation.is_uneven:
        conversation.doubt = f"an empty conversation takes its place: {len(prompt)} messages before the answer"
    elif not (answers[0]["content"] or answers[0].get("tool_calls")):
        conversation.doubt = "the answer is empty: the last message"
    return conversation


def _answer(text: str) -> Message:
    return {"role": "assistant", "content": text}


def _checked(content: Any, place: int) -> str:
    if not isinstance(content, str):
        raise BadRecord(f"content must be a text: message {place} has {content!r}"[:200])
    return content


def _history(row: Row, columns: Columns) -> list[list[str]]:
    turns = row.get(columns.history) if columns.history else None
    if turns is None:
        return []
    are_pairs = isinstance(turns, list) and all(
        isinstance(turn, list) and len(turn) == 2 and all(isinstance(text, str) for text in turn) for turn in turns
    )
    if not are_pairs:
        raise BadRecord(f"{columns.history!r} must be a list of pairs of texts: is {turns!r}"[:200])
    return turns


def _under(values: dict[str, Any], name: str | None) -> Any:
    """The value under a name; None where there is none, or the name is None: not read."""
    return None if name is None else values.get(name)


def _messages(row: Row, columns: Columns) -> list[Message]:
    messages = _under(row, columns.messages)
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise BadRecord(f"{columns.messages!r} must be a list of messages: is {messages!r}"[:200])
    if not messages:
        raise BadRecord(f"no messages: {columns.messages!r} is empty")
    roles = [_under(message, columns.tags.role_tag) for message in messages]
    if not all(role is None or isinstance(role, str) for role in roles):
        raise BadRecord(f"roles must be texts: {roles!r}"[:200])
    return messages


def _opened(row: Row, columns: Columns) -> tuple[str, list[Message]]:
    """The system text, "" if there is none, and the messages behind it. Raises BadRecord where there are none."""
    messages, tags = _messages(row, columns), columns.tags
    if tags.system_tag and _under(messages[0], tags.role_tag) == tags.system_tag:
        system, messages = _under(messages[0], tags.content_tag), messages[1:]
    else:
        system = row.get(columns.system) if columns.system else ""
    if not messages:
        raise BadRecord("no messages: there is only a system message")
    if not (system is None or isinstance(system, str)):
        raise BadRecord(f"the system message must be a text: is {system!r}"[:200])
    return system or "", messages


def _in_turn(messages: list[Message], columns: Columns) -> list[Message]:
    """The messages that have content, under our roles. Raises BadRecord unless user (or observation) and assistant (or
    function call) take turns."""
    tags = columns.tags
    turns = []
    wanted = (tags.user_tag, tags.observation_tag), (tags.assistant_tag, tags.function_tag)
    for place, message in enumerate(messages):
        role = _under(message, tags.role_tag)
        if role is None or role not in wanted[place % 2]:
            names = " or ".join(str(name) for name in wanted[place % 2] if name)
            raise BadRecord(f"roles out of order: message {place} must be of {names}, is of {role!r}")
        content = _under(message, tags.content_tag)
        if content is not None:
            turns.append({"role": tags.roles[role], "content": _checked(content, place)})
    return turns


def _tools(row: Row, columns: Columns, also: Any = ()) -> str:
    """The tools as JSON text, "" if there are none; in a row they are a text, or values of the types `also`."""
    tools = _under(row, columns.tools)
    if isinstance(tools, also):
        return json.dumps(tools, ensure_ascii=False)
    if not (tools is None or isinstance(tools, str)):
        raise BadRecord(f"{columns.tools!r} must be JSON in a text: is {tools!r}"[:200])
    return tools or ""
