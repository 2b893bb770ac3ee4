"""Handlers without a template: running text, and questions under Alpaca's fixed headings or with Baichuan's ids."""

from collections.abc import Sequence

from parallel_core.data.instruction.encoding import IGNORED
from parallel_core.data.instruction.records import BadRecord, Row, text_under
from parallel_core.data.instruction.setting import Sequences, Setting, labelled
from parallel_core.data.instruction.tool_texts import TEXTS

INSTRUCTION, RESPONSE = "### Instruction:", "### Response:"
BAICHUAN_USER, BAICHUAN_ASSISTANT = 195, 196
"""Ids before a user's and an assistant's text in Baichuan's vocabulary."""
Turn = tuple[str, str]
"""Heading and text of a question or an answer."""


def pretrain(row: Row, setting: Setting) -> Sequences:
    """Running text: the row's text under each of --json-keys; no sequence where it is empty. With a
    --pad-to-multiple-of above 1 each sequence is padded to a multiple of it. Raises BadRecord for a row without a text
    under one of the keys, ValueError as the tokenizer's `encode` and, for --append-eod, as `Setting.eod`."""
    return {key: _running(text_under(row, key), setting, setting.pad_to_multiple_of) for key in setting.json_keys}


def alpaca_pretrain(row: Row, setting: Setting) -> Sequences:
    """Running text, in the data set "text": `instruction`, `input` and `output` in a fixed prompt; the word None for
    one that is missing or null, and for an `input` that is empty, 0 or false, as MindSpeed-LLM writes it. Raises
    BadRecord where instruction and output are both missing or null, ValueError as the tokenizer's `encode` and, for
    --append-eod, as `Setting.eod`."""
    given = f" Input:\n{row['input']}" if row.get("input") else "None"
    values = {"{instruction}": row.get("instruction"), "{input}": given, "{output}": row.get("output")}
    if values["{instruction}"] is None and values["{output}"] is None:
        raise BadRecord("no text: 'instruction' and 'output' are missing")
    parts = TEXTS["alpaca_pretrain"].replace("{", "\0{").replace("}", "}\0").split("\0")
    return {"text": _running("".join(str(values.get(part, part)) for part in parts), setting)}


def sharegpt_pretrain(row: Row, setting: Setting) -> Sequences:
    """Running text: for each of --json-keys the texts of the list of messages under it, joined to one sequence; no
    sequence where the joined text is empty. Raises BadRecord where there is no list, or one of other things than
    messages with texts, ValueError as the tokenizer's `encode` and, for --append-eod, as `Setting.eod`."""
    return {key: _running("".join(_values(row, key)), setting) for key in setting.json_keys}


def stack_overflow(row: Row, setting: Setting) -> Sequences:
    """Running text, in the data set "text": a question about Python (`title`, `question_body`) with its answer
    (`answer_body`), with a --pad-to-multiple-of above 1 padded to a multiple of it. Raises BadRecord where one of these
    texts is missing, ValueError as the tokenizer's `encode` and, for --append-eod, as `Setting.eod`."""
    title, question, answer = (text_under(row, key) for key in ("title", "question_body", "answer_body"))
    whole = f"In python, {title}\n### Question:\n{question}\n### Response:\n{answer}\n"
    return {"text": _running(whole, setting, setting.pad_to_multiple_of)}


def _values(row: Row, key: str) -> list[str]:
    messages = row.get(key)
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise BadRecord(f"{key!r} must be a list of messages: is {messages!r}"[:200])
    values = [message.get("value", message.get("content")) for message in messages]
    if not all(isinstance(value, str) for value in values):
        raise BadRecord(f"{key!r} has a message without a text under 'value' or 'content'")
    return values


def _running(content: str, setting: Setting, multiple: int = 1) -> list[list[int]]:
    """The text as one sequence, no sequence if it is empty. multiple: pad the ids to a multiple, where padding has the
    first id behind the vocabulary, as MindSpeed-LLM writes it."""
    if not content:
        return []
    ids = list(setting.tokens.tokenizer.encode(content, special=True))
    if multiple > 1:
        missing = (len(ids) // multiple + 1) * multiple - len(ids) - setting.append_eod
        ids += [setting.tokens.tokenizer.vocab_size] * missing
    return [[*ids, setting.eod] if setting.append_eod else ids]


def general(row: Row, setting: Setting) -> Sequences:
    """A question and its answer, as one sequence of input_ids, attention_mask (ones) and labels (-100 up to and with
    the last `### Response:` in the whole text): `instruction` and `input` are asked, `output` is answered. Raises
    BadRecord where one of these texts is missing, ValueError as the tokenizer's `encode` and, for --append-eod, as
    `Setting.eod`."""
    asked = f"{text_under(row, 'instruction')}\n{text_under(row, 'input')}"
    return _prompted([(INSTRUCTION, asked), (RESPONSE, text_under(row, "output"))], setting)


def leetcode(row: Row, setting: Setting) -> Sequences:
    """A question and its answer, as one sequence of input_ids, attention_mask (ones) and labels (-100 up to and with
    the last `### Response:` in the whole text): the part of `code_with_problem` before its code (```) is asked,
    `code_only` and `explanation_only` are answered. Raises BadRecord where one of these texts is missing, ValueError as
    the tokenizer's `encode` and, for --append-eod, as `Setting.eod`."""
    asked = text_under(row, "code_with_problem").split("```", maxsplit=1)[0].strip()
    answer = f"{text_under(row, 'code_only')}\n{text_under(row, 'explanation_only')}"
    return _prompted([(INSTRUCTION, asked), (RESPONSE, answer)], setting)


def belle(row: Row, setting: Setting) -> Sequences:
    """One sequence of input_ids, attention_mask (ones) and labels (-100 up to and with the last `### Response:` in the
    whole text): turns that `Human:` and `Assistant:` begin within the text `instruction`, with `output` in place of the
    text of the last one. As in MindSpeed-LLM a text without `Assistant:` behind its `Human:` counts as an answer, so
    that a last question without `Assistant:` is lost; of two answers to one question the second is left out. Raises
    BadRecord where `instruction` or `output` is missing, or `instruction` has no character outside of `Human:`,
    ValueError as the tokenizer's `encode` and, for --append-eod, as `Setting.eod`."""
    turns: list[Turn] = []
    for part in filter(None, text_under(row, "instruction").split("Human:")):
        asked, *answered = part.split("Assistant:")
        turns += [(INSTRUCTION, asked.strip()), (RESPONSE, answered[0].strip())] if answered else []
        turns += [] if answered else [(RESPONSE, asked.strip())]
    if not turns:
        raise BadRecord("no turns: 'instruction' is empty")
    return _prompted([*turns[:-1], (RESPONSE, text_under(row, "output").strip())], setting)


def moss(row: Row, setting: Setting) -> Sequences:
    """A sequence of input_ids, attention_mask (ones) and labels for each turn of a MOSS chat, with the turns before it;
    in each, the labels up to and with the last `### Response:` are -100. Turns that are empty, null, 0 or false are
    left out, and --append-eod adds nothing. Raises BadRecord for a row whose `chat` is no object, has no turn that
    stays, or has one that is no object with the texts `Human` and `MOSS` (maybe ""); ValueError as the tokenizer's
    `encode`."""
    turns: list[Turn] = []
    documents = []
    for asked, answered in _moss_turns(row):
        turns += [(INSTRUCTION, asked), (RESPONSE, answered)]
        documents.append(_prompted(turns, setting, append_eod=False))
    return {key: [document[key][0] for document in documents] for key in ("input_ids", "attention_mask", "labels")}


def moss_turns(row: Row, setting: Setting) -> Sequences:
    """A MOSS chat in Baichuan's form, as one sequence of input_ids, attention_mask (ones) and labels: the speaker's id
    before each text, and the end-of-text id behind the last. Labels: answers' ids and that last id as they are, the
    end-of-text id in the place of the user's speaker id, else -100. Raises BadRecord as `moss`, ValueError for a
    tokenizer without an end of a text and as its `encode`."""
    tokenizer, eos = setting.tokens.tokenizer, setting.tokens.eos
    ids: list[int] = []
    labels: list[int] = []
    for asked, answered in _moss_turns(row):
        question, answer = (tokenizer.encode(part, special=True) for part in (asked, answered))
        ids += [BAICHUAN_USER, *question, BAICHUAN_ASSISTANT, *answer]
        labels += [eos, *[IGNORED] * len(question), IGNORED, *answer]
    return labelled([*ids, eos], [*labels, eos])


def _moss_turns(row: Row) -> list[tuple[str, str]]:
    chat = row.get("chat")
    if not isinstance(chat, dict) or not any(chat.values()):
        raise BadRecord(f"'chat' must be an object of turns: is {chat!r}"[:200])
    turns = [turn for turn in chat.values() if turn]
    if not all(isinstance(turn, dict) and {"Human", "MOSS"} <= set(turn) for turn in turns):
        raise BadRecord("'chat' has a turn without 'Human' and 'MOSS'")
    return [
        (
            text_under(turn, "Human").replace("<eoh>", "").replace("<|Human|>: ", "").strip(),
            text_under(turn, "MOSS").replace("<|MOSS|>:", "").replace("<eom>", "").strip(),
        )
        for turn in turns
    ]


def _prompted(turns: Sequence[Turn], setting: Setting, append_eod: bool | None = None) -> Sequences:
    """The sequences of turns under their headings; all but the last answer is masked. append_eod: None: as --append-eod
    says."""
    encode = setting.tokens.tokenizer.encode
    whole = f"\n{TEXTS['alpaca_system']}\n" + "".join(f"{heading}\n{content}\n" for heading, content in turns)
    ids = list(encode(whole, special=True))
    masked = len(encode(whole.rsplit(RESPONSE, maxsplit=1)[0] + RESPONSE + "\n", special=True))
    end = [setting.eod] if (setting.append_eod if append_eod is None else append_eod) else []
    ids += end
    return labelled(ids, [IGNORED] * masked + ids[masked:])
