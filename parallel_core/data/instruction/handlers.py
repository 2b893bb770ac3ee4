"""MindSpeed-LLM's handlers: what each reads of a row and writes of it.

A handler has two steps. `align` makes of a row a conversation (or leaves it a row), where wrong records are found;
`encode` makes the sequences of each data set of it, maybe in another process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from parallel_core.data.instruction import prompters
from parallel_core.data.instruction.columns import (
    ALPACA_KEYS,
    OPENAI_KEYS,
    OPENAI_TAGS,
    SHAREGPT_KEYS,
    Columns,
)
from parallel_core.data.instruction.conversations import CONVERTERS, Conversation
from parallel_core.data.instruction.encoding import IGNORED, ConversationEncoder, joined
from parallel_core.data.instruction.records import BadRecord, Row
from parallel_core.data.instruction.tokens import ConversationTokens

Sequences = dict[str, list[list[int]]]
"""Data set -> the sequences of one document."""
INSTRUCTION_KEYS = ("input_ids", "attention_mask", "labels")
PAIR_KEYS = ("chosen_input_ids", "chosen_labels", "rejected_input_ids", "rejected_labels")


@dataclass(frozen=True)
class Setting:
    """What encoding needs to know; goes to worker processes."""

    tokens: ConversationTokens
    encoder: ConversationEncoder
    json_keys: tuple[str, ...] = ("text",)
    append_eod: bool = False
    pad_to_multiple_of: int = 1
    neat_room: int | None = None
    """--neat-pack: tokens that a turn may have."""
    additional_keys: tuple[str, ...] = ()
    room: int | None = None
    """--seq-length."""

    @property
    def eod(self) -> int:
        """Behind each sample."""
        return self.tokens.eos


Encode = Callable[[Any, Setting], Sequences]


@dataclass(frozen=True)
class Handler:
    """How a `--handler-name` reads and writes."""

    encode: Encode
    converter: str | None = None
    """Key of CONVERTERS; none: `encode` takes the row."""
    columns: Columns = field(default_factory=Columns)
    map_keys: tuple[str, ...] = ()
    keys: tuple[str, ...] | None = INSTRUCTION_KEYS
    """Data sets; none: those of --json-keys."""
    has_template: bool = True
    """--prompt-type is needed."""

    def align(self, row: Row, columns: Columns) -> Conversation | Row:
        """What `encode` takes. Raises BadRecord."""
        return row if self.converter is None else CONVERTERS[self.converter](row, columns)


def instruction(conversation: Conversation, setting: Setting) -> Sequences:
    """Ids, ones and labels of a conversation."""
    template = setting.encoder.template
    pairs = setting.encoder.pairs(conversation)
    efficient_eos = bool(template and template.efficient_eos)
    return _with_eod(*joined(pairs, efficient_eos, setting.tokens.eos, setting.neat_room), setting)


def _with_eod(ids: list[int], labels: list[int], setting: Setting) -> Sequences:
    if not ids:
        raise BadRecord("no token: the conversation is empty")
    if setting.append_eod:
        ids, labels = [*ids, setting.eod], [*labels, setting.eod]
    return {"input_ids": [ids], "attention_mask": [[1] * len(ids)], "labels": [labels]}


def pair(conversation: Conversation, setting: Setting) -> Sequences:
    """Ids and labels with the chosen and with the rejected answer."""
    template = setting.encoder.template
    end = [setting.tokens.eos] if template and template.efficient_eos else []
    whole = replace(setting.encoder, room=10**9)
    sides = {}
    for name, answer in zip(("chosen", "rejected"), conversation.responses, strict=True):
        turns = whole.pairs(replace(conversation, responses=[answer]))
        source = [token for turn in turns[:-1] for part in turn for token in part] + turns[-1][0]
        target = turns[-1][1] + end
        sides[f"{name}_input_ids"] = [source + target]
        sides[f"{name}_labels"] = [[IGNORED] * len(source) + target]
    return sides


def reward(conversation: Conversation, setting: Setting) -> Sequences:
    """Ids without the last answer, which --dataset-additional-keys labels writes apart."""
    turns = setting.encoder.pairs(conversation)
    ids = [token for turn in turns[:-1] for part in turn for token in part] + turns[-1][0]
    written: Sequences = {"input_ids": [ids], "attention_mask": [[1] * len(ids)]}
    for key in setting.additional_keys:
        text = conversation.responses[-1]["content"] if key == "labels" else conversation.row.get(key)
        if not isinstance(text, str):
            raise BadRecord(f"{key!r} must be a text: is {text!r}"[:200])
        written[key] = [setting.tokens.tokenizer.encode(text)]
    return written


def hunyuan(conversation: Conversation, setting: Setting) -> Sequences:
    """By the tokenizer's own template; what stands from <|extra_0|> to <|eos|> carries loss."""
    tokens = setting.tokens
    names = {"observation": "tool", "function": "assistant"}
    messages = [{**m, "role": names.get(m["role"], m["role"])} for m in conversation.prompt + conversation.responses]
    ids = tokens.chat(messages, is_asked=False)
    first, last = (tokens.tokenizer.token_to_id(name) for name in ("<|extra_0|>", "<|eos|>"))
    if first is None or last is None:
        raise ValueError("--handler-name HunyuanInstructionHandler needs Hunyuan's tokenizer, with <|extra_0|>, <|eos|>")
    labels = [IGNORED] * len(ids)
    begins, ends = ([at for at, token in enumerate(ids) if token == mark] for mark in (first, last))
    for begin, end in zip(begins, ends, strict=False):
        labels[begin : end + 1] = ids[begin : end + 1]
    written = _with_eod(ids[: setting.room], labels[: setting.room], setting)
    written["attention_mask"] = [[int(token != tokens.pad) for token in written["input_ids"][0]]]
    return written


_ALPACA = {"columns": Columns(), "map_keys": ALPACA_KEYS}
_SHAREGPT = {"columns": Columns(), "map_keys": SHAREGPT_KEYS}
_OPENAI = {"columns": Columns(messages="messages", tools="tools", tags=OPENAI_TAGS), "map_keys": OPENAI_KEYS}
_PLAIN = {"has_template": False}
_PRETRAIN = {"keys": None, "has_template": False}

HANDLERS: dict[str, Handler] = {
    "GeneralPretrainHandler": Handler(prompters.pretrain, **_PRETRAIN),
    "AlpacaPretrainHandler": Handler(prompters.alpaca_pretrain, keys=("text",), has_template=False),
    "SharegptPretrainHandler": Handler(prompters.sharegpt_pretrain, **_PRETRAIN),
    "StackOverflowPythonPretrainHandler": Handler(prompters.stack_overflow, keys=("text",), has_template=False),
    "LlamaFactoryInstructionHandler": Handler(instruction),
    "AlpacaStyleInstructionHandler": Handler(instruction, "alpaca", **_ALPACA),
    "SharegptStyleInstructionHandler": Handler(instruction, "sharegpt", **_SHAREGPT),
    "OpenAIInstructionHandler": Handler(instruction, "openai", **_OPENAI),
    "HunyuanInstructionHandler": Handler(hunyuan, "hunyuan", **_SHAREGPT, has_template=False),
    "AlpacaStylePairwiseHandler": Handler(pair, "alpaca_pair", **_ALPACA, keys=PAIR_KEYS),
    "SharegptStylePairwiseHandler": Handler(pair, "sharegpt_pair", **_SHAREGPT, keys=PAIR_KEYS),
    "R1AlpacaStyleInstructionHandler": Handler(reward, "alpaca", **_ALPACA, keys=("input_ids", "attention_mask")),
    "R1SharegptStyleInstructionHandler": Handler(reward, "sharegpt", **_SHAREGPT, keys=("input_ids", "attention_mask")),
    "GeneralInstructionHandler": Handler(prompters.general, **_PLAIN),
    "BelleMultiTurnInstructionHandler": Handler(prompters.belle, **_PLAIN),
    "LeetcodePythonInstructionHandler": Handler(prompters.leetcode, **_PLAIN),
    "MOSSInstructionHandler": Handler(prompters.moss, **_PLAIN),
    "MOSSMultiTurnHandler": Handler(prompters.moss_turns, **_PLAIN),
}
"""Every `--handler-name` there is."""

REFUSED = {"PPOAlpacaStyleInstructionHandler": "writes prompts without answers for PPO, which is not trained here"}
