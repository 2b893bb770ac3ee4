"""The way from a conversation to ids and labels, by pairs of source and target."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from parallel_core.data.instruction import deepseek4
from parallel_core.data.instruction.conversations import Conversation, Message
from parallel_core.data.instruction.records import BadRecord
from parallel_core.data.instruction.templates import Slots, Template
from parallel_core.data.instruction.tokens import ConversationTokens
from parallel_core.data.instruction.tool_texts import described, function_calls, name_and_arguments, parsed

IGNORED = -100
"""The label of a token without loss."""
UNCUT = 100_000
"""The number of tokens that a conversation may have without --seq-length."""

Pair = tuple[list[int], list[int]]
"""Ids of a source (up to where an answer begins), and of its target (the answer)."""


def shares(source: int, target: int, room: int) -> tuple[int, int]:
    """The numbers of tokens that a source and a target of these lengths keep in `room` tokens together. A target below
    half of the room stays whole, else a source below half; else both share the room in proportion to their lengths."""
    if target * 2 < room:
        most = room
    elif source * 2 < room:
        most = room - source
    else:
        most = int(room * (target / (source + target)))
    kept = min(most, target)
    return min(max(room - kept, 0), source), kept


def _proportional(source: int, target: int, room: int) -> tuple[int, int]:
    """The most tokens of source and target, of these lengths, that are kept in `room` tokens, in proportion to the
    lengths; at least one token of the target. The proportion is rounded as in MindSpeed-LLM, so two that just fit may
    lose a token."""
    most = max(int(room * (target / (source + target))) if source + target else 0, 1)
    return room - min(most, target), most


@dataclass(frozen=True)
class ConversationEncoder:
    """The encoder of conversations to ids, by one template (None: by the tokenizer's own). room: the most tokens of a
    conversation's turns; one less unless the template's style `cuts_by_share`. enable_thinking: value of
    --enable-thinking, for templates of a style that `reasons` (an answer without a thought gets an empty one with loss
    (True) or in the question before (None, False), and False takes thoughts out of answers), for DeepSeek V4's format
    (True writes thoughts, None and False do not), and a variable of the tokenizer's own template, if not None.
    drop_thinking: whether DeepSeek V4's format, if it writes thoughts and there are no tools, leaves out those before
    the last question or result of a tool."""

    template: Template | None
    """The template that writes conversations; None: the tokenizer's own."""
    tokens: ConversationTokens
    room: int = UNCUT
    """The most tokens of a conversation's turns; one less unless the template's style `cuts_by_share`."""
    enable_thinking: bool | None = None
    """Value of --enable-thinking. For templates of a style that `reasons`: True gives an answer without a thought an
    empty one, with loss; False and None put that into the source before it; False takes thoughts out of answers. For
    DeepSeek V4's format: True writes thoughts, False and None do not. A variable of the tokenizer's own template."""
    drop_thinking: bool = True
    """Whether DeepSeek V4's format, if it writes thoughts and there are no tools, leaves out those before the last
    question or result of a tool."""

    @property
    def end(self) -> int | None:
        """The id to put behind the last answer, which is not in `pairs`: the end of a text with a template of
        `efficient_eos`, else None. Raises ValueError with such a template for a tokenizer without an end of a text."""
        return self.tokens.eos if self.template and self.template.efficient_eos else None

    def pairs(self, conversation: Conversation) -> list[Pair]:
        """(ids of the source, ids of the target) of each turn, cut so that all turns together have at most `room`
        tokens; turns behind a full room are left out. Raises BadRecord for messages and tools that the template cannot
        write; ValueError as the tokenizer's `encode` and, with its own template, its `apply_chat_template`."""
        template = self.template
        if template is None:
            return self._cut(self._by_own_template(conversation), False)
        if template.style.is_deepseek4:
            texts = deepseek4.written(conversation, bool(self.enable_thinking), self.drop_thinking)
            return self._cut([self.tokens.encode([text]) for text in texts], False)
        messages = self._thoughtful(conversation.messages)
        written = [self._message(place, message, conversation) for place, message in enumerate(messages)]
        if template.style.reasons:
            self._add_empty_thoughts(messages, written)
        return self._cut(written, template.style.cuts_by_share)

    def _message(self, place: int, message: Message, conversation: Conversation) -> list[int]:
        """The ids of message `place`, behind the text that opens the conversation or separates turns. Of a system
        message in the user's, the first slot counts, as in MindSpeed-LLM."""
        template = self.template
        assert template
        opening: list[Any] = []
        content = message["content"]
        if place == 0:
            opening += template.formats["prefix"]
            opening += (system := self._system(conversation))
            if system and template.style.system_in_user and message["role"] == "user":
                opening, content = opening[: -len(system)], str(system[0]) + content
        elif place % 2 == 0 and template.style.separates:
            opening += template.formats["separator"]
        idx = None if template.style.system_in_user else str(place // 2)
        return self.tokens.encode((*opening, *_written(template, message["role"], content, idx)))

    def _system(self, conversation: Conversation) -> Slots:
        template = self.template
        assert template
        system = conversation.system or template.default_system
        if not (system or conversation.tools):
            return ()
        tools = described(conversation.tools, template.tool_format) if conversation.tools else ""
        return filled(template.formats["system"], content=system + tools)

    def _by_own_template(self, conversation: Conversation) -> list[list[int]]:
        """Sources and targets in turn, by the tokenizer's chat template. Raises BadRecord where that writes the earlier
        turns of a longer conversation differently."""
        names = {"observation": "tool", "function": "assistant"}
        system = [{"role": "system", "content": conversation.system}] if conversation.system else []
        messages = [
            {**message, "role": names.get(message["role"], message["role"])} for message in conversation.messages
        ]
        variables: dict[str, Any] = {"tools": parsed(conversation.tools)} if conversation.tools else {}
        if self.enable_thinking is not None:
            variables["enable_thinking"] = self.enable_thinking
        parts: list[list[int]] = []
        done: list[int] = []
        for place in range(len(messages)):
            whole = self.tokens.chat(system + messages[: place + 1], place % 2 == 0, **variables)
            if whole[: len(done)] != done:
                raise BadRecord(f"the tokenizer's chat template writes the turns before differently: message {place}")
            parts.append(whole[len(done) :])
            done = whole
        return parts

    def _thoughtful(self, messages: list[Message]) -> list[Message]:
        """The messages, answers without thoughts where --enable-thinking is false and the template knows thoughts."""
        assert self.template
        if not (self.template.style.reasons and self.enable_thinking is False):
            return messages
        first, last = (re.escape(word) for word in self.template.thought_words)
        thought = re.compile(f"{first}(.*?){last}", re.DOTALL)
        return [
            {**message, "content": thought.sub("", message["content"]).lstrip("\n")} if place % 2 else message
            for place, message in enumerate(messages)
        ]

    def _add_empty_thoughts(self, messages: Sequence[Message], written: list[list[int]]) -> None:
        """Add an empty thought, in place, to answers without one: to the answer if thinking is enabled, else to the
        source before it."""
        assert self.template
        empty = self.tokens.encode(["".join(self.template.thought_words)])
        for place in range(0, len(messages), 2):
            if not any(word in messages[place + 1]["content"] for word in self.template.thought_words):
                if self.enable_thinking:
                    written[place + 1] = empty + written[place + 1]
                else:
                    written[place] = written[place] + empty

    def _cut(self, written: Sequence[list[int]], by_share: bool) -> list[Pair]:
        """Pairs of the sources and targets, which come in turn, as many tokens of them as `room` holds. by_share: cut a
        pair in proportion to the lengths of the two; else by `shares`, to one token less."""
        room = self.room if by_share else self.room - 1
        rule = _proportional if by_share else shares
        pairs: list[Pair] = []
        used = 0
        for source, target in zip(written[::2], written[1::2], strict=True):
            if used >= room:
                break
            of_source, of_target = rule(len(source), len(target), room - used)
            pair = source[:of_source], target[:of_target]
            used += len(pair[0]) + len(pair[1])
            pairs.append(pair)
        return pairs


def _written(template: Template, role: str, content: str, idx: str | None) -> Slots:
    slots = template.formats.get(role)
    if slots is None or role in ("prefix", "separator", "system"):
        raise BadRecord(f"no place for a message of {role} among the turns")
    if role == "user" and idx is not None:
        return filled(slots, content=content, idx=idx)
    if role != "function":
        return filled(slots, content=content)
    if any("{{name}}" in slot for slot in slots if isinstance(slot, str)):
        name, arguments = name_and_arguments(content)
        return tuple(
            slot.replace("{{name}}", name).replace("{{arguments}}", arguments) if isinstance(slot, str) else slot
            for slot in slots
        )
    return filled(slots, content=function_calls(content))


def filled(slots: Slots, **values: str) -> Slots:
    """The slots, the first {{name}} in each slot that is text replaced by the value of that name, for one of `values`
    after the other; a {{name}} within an earlier value is replaced, too, if it is the first one in the slot."""

    def of(text: str) -> str:
        for name, value in values.items():
            text = text.replace("{{" + name + "}}", value, 1)
        return text

    return tuple(of(slot) if isinstance(slot, str) else slot for slot in slots)


def joined(pairs: Sequence[Pair], end: int | None, room: int | None = None) -> Pair:
    """The ids and labels of all pairs one after the other; sources have the label -100. end: an id that is put behind
    all, and is instead of -100 the label of the first token of each source that has ids before it; None: there is none.
    room: tokens that each pair is cut to by itself (--neat-pack); None: pairs are not cut."""
    ids: list[int] = []
    labels: list[int] = []
    for source, target in pairs:
        masked = [IGNORED] * len(source)
        if ids and end is not None and source:
            masked[0] = end
        if room is not None:
            of_source, of_target = shares(len(source), len(target), room)
            source, masked, target = source[:of_source], masked[:of_source], target[:of_target]
        ids += source + target
        labels += masked + target
    if end is not None:
        ids, labels = [*ids, end], [*labels, end]
    return ids, labels
