"""MindSpeed-LLM's handlers: the way in which each reads a row of data and writes it as sequences.

A handler's converter, if it has one, turns a row into a conversation; its `encode` turns that, else the row itself,
into the sequences of each data set, maybe in another process. The converters of LlamaFactoryInstructionHandler are
those of its data sets.
"""

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
from parallel_core.data.instruction.conversations import Conversation
from parallel_core.data.instruction.encoding import IGNORED, joined
from parallel_core.data.instruction.records import BadRecord, text_under
from parallel_core.data.instruction.setting import Sequences, Setting, labelled

INSTRUCTION_KEYS = ("input_ids", "attention_mask", "labels")
PAIR_KEYS = ("chosen_input_ids", "chosen_labels", "rejected_input_ids", "rejected_labels")


Encode = Callable[[Any, Setting], Sequences]


@dataclass(frozen=True)
class Handler:
    """The reader and writer that a `--handler-name` selects. encode: makes the sequences of a conversation, or of a
    row; converter: the name of the function that makes a conversation of a row, None if rows are encoded or each data
    set names its own; columns: names of the columns that the converter reads, unless --map-keys, which may have the
    keys `map_keys`, gives others; keys: names of the data sets that are written, but for those of
    --dataset-additional-keys, None for those of --json-keys; has_template: whether --prompt-type must be given."""

    encode: Encode
    converter: str | None = None
    """Key of `conversations.CONVERTERS`; None: `encode` takes the row itself (LlamaFactory's: each source has its
    own)."""
    columns: Columns = field(default_factory=Columns)
    """The names of the columns that the converter reads, where --map-keys gives no others."""
    map_keys: tuple[str, ...] = ()
    """Keys that --map-keys may have; empty: it is refused."""
    keys: tuple[str, ...] | None = INSTRUCTION_KEYS
    """Names of the data sets that it writes, but for those of --dataset-additional-keys; None: those of --json-keys."""
    has_template: bool = True
    """Whether --prompt-type must be given."""


def instruction(conversation: Conversation, setting: Setting) -> Sequences:
    """One sequence in each data set, of turns cut together to the encoder's `room` (`ConversationEncoder.pairs`), then
    each to `neat_room`, if there is one: input_ids, the end of a text behind them with a template of `efficient_eos`,
    and one with --append-eod (two with both); attention_mask (ones); labels (input_ids, not shifted, with -100 at
    questions; with `efficient_eos` the first token of a question that has tokens before it has the end of a text as its
    label). Raises BadRecord where there is no token to write, ValueError for a tokenizer without an end of a text that
    is written, and both as `ConversationEncoder.pairs`."""
    encoder = setting.encoder
    return _with_eod(*joined(encoder.pairs(conversation), encoder.end, setting.neat_room), setting)


def _with_eod(ids: list[int], labels: list[int], setting: Setting) -> Sequences:
    if not ids:
        raise BadRecord("no token: the conversation is empty")
    if setting.append_eod:
        ids, labels = [*ids, setting.eod], [*labels, setting.eod]
    return labelled(ids, labels)


def pair(conversation: Conversation, setting: Setting) -> Sequences:
    """The sequences of a conversation with two answers: chosen_input_ids and chosen_labels (-100 before the answer),
    rejected_input_ids and rejected_labels; none is cut; with a template of `efficient_eos` the end of a text ends each.
    Raises ValueError with a template of `efficient_eos` for a tokenizer without an end of a text, and BadRecord and
    ValueError as `ConversationEncoder.pairs`."""
    end = [] if setting.encoder.end is None else [setting.encoder.end]
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
    """The sequences of a conversation cut to the encoder's `room` (`ConversationEncoder.pairs`), without the answer of
    the last turn that is left: input_ids, attention_mask (ones), and for each of --dataset-additional-keys the ids of
    the row's text under that key, not cut; for the key `labels` those of the conversation's last answer. Raises
    BadRecord if no turn is left, for a row without text under a key or, for `labels`, without an answer, and BadRecord
    and ValueError as `ConversationEncoder.pairs`."""
    turns = setting.encoder.pairs(conversation)
    if not turns:
        raise BadRecord("no turn of the conversation is left")
    ids = [token for turn in turns[:-1] for part in turn for token in part] + turns[-1][0]
    written: Sequences = {"input_ids": [ids], "attention_mask": [[1] * len(ids)]}
    labels = conversation.responses[-1]["content"] if conversation.responses else None
    for key in setting.additional_keys:
        text = text_under({**conversation.row, "labels": labels}, key)
        written[key] = [setting.tokens.tokenizer.encode(text)]
    return written


def hunyuan(conversation: Conversation, setting: Setting) -> Sequences:
    """The sequences of a conversation by the tokenizer's own template, cut to `setting.room` and with --append-eod
    ended by the end of a text: input_ids, attention_mask (0 at the padding id), labels (-100 but for that end and for
    tokens from the nth <|extra_0|> to the nth <|eos|>, n = 1, 2, ...). Raises ValueError for a tokenizer that lacks
    these tokens, or an end of a text or padding that is needed, and as `ConversationTokens.chat`; BadRecord for a
    conversation without tokens."""
    tokens = setting.tokens
    names = {"observation": "tool", "function": "assistant"}
    messages = [{**m, "role": names.get(m["role"], m["role"])} for m in conversation.prompt + conversation.responses]
    ids = tokens.chat(messages, is_asked=False)
    first, last = (tokens.tokenizer.token_to_id(name) for name in ("<|extra_0|>", "<|eos|>"))
    if first is None or last is None:
        raise ValueError(
            "--handler-name HunyuanInstructionHandler needs Hunyuan's tokenizer, with <|extra_0|>, <|eos|>"
        )
    labels = [IGNORED] * len(ids)
    begins, ends = ([at for at, token in enumerate(ids) if token == mark] for mark in (first, last))
    for begin, end in zip(begins, ends, strict=False):
        labels[begin : end + 1] = ids[begin : end + 1]
    written = _with_eod(ids[: setting.room], labels[: setting.room], setting)
    written["attention_mask"] = [[int(token != tokens.pad) for token in written["input_ids"][0]]]
    return written


_ALPACA = Handler(instruction, "alpaca", map_keys=ALPACA_KEYS)
_SHAREGPT = Handler(instruction, "sharegpt", map_keys=SHAREGPT_KEYS)
_OPENAI_COLUMNS = Columns(messages="messages", tools="tools", tags=OPENAI_TAGS)
_REWARD_KEYS = ("input_ids", "attention_mask")


def _running(encode: Encode, keys: tuple[str, ...] | None = None) -> Handler:
    return Handler(encode, keys=keys, has_template=False)


def _prompted(encode: Encode) -> Handler:
    return Handler(encode, has_template=False)


HANDLERS: dict[str, Handler] = {
    "GeneralPretrainHandler": _running(prompters.pretrain),
    "AlpacaPretrainHandler": _running(prompters.alpaca_pretrain, ("text",)),
    "SharegptPretrainHandler": _running(prompters.sharegpt_pretrain),
    "StackOverflowPythonPretrainHandler": _running(prompters.stack_overflow, ("text",)),
    "LlamaFactoryInstructionHandler": Handler(instruction),
    "AlpacaStyleInstructionHandler": _ALPACA,
    "SharegptStyleInstructionHandler": _SHAREGPT,
    "OpenAIInstructionHandler": Handler(instruction, "openai", _OPENAI_COLUMNS, OPENAI_KEYS),
    "HunyuanInstructionHandler": Handler(hunyuan, "hunyuan", map_keys=SHAREGPT_KEYS, has_template=False),
    "AlpacaStylePairwiseHandler": replace(_ALPACA, encode=pair, converter="alpaca_pair", keys=PAIR_KEYS),
    "SharegptStylePairwiseHandler": replace(_SHAREGPT, encode=pair, converter="sharegpt_pair", keys=PAIR_KEYS),
    "R1AlpacaStyleInstructionHandler": replace(_ALPACA, encode=reward, keys=_REWARD_KEYS),
    "R1SharegptStyleInstructionHandler": replace(_SHAREGPT, encode=reward, keys=_REWARD_KEYS),
    "GeneralInstructionHandler": _prompted(prompters.general),
    "BelleMultiTurnInstructionHandler": _prompted(prompters.belle),
    "LeetcodePythonInstructionHandler": _prompted(prompters.leetcode),
    "MOSSInstructionHandler": _prompted(prompters.moss),
    "MOSSMultiTurnHandler": _prompted(prompters.moss_turns),
}
"""--handler-name -> handler."""

REFUSED = {"PPOAlpacaStyleInstructionHandler": "writes prompts without answers for PPO, which is not trained here"}
