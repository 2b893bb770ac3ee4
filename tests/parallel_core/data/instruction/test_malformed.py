"""Damaged records and templates of instruction data, drawn by seed: clear errors, counted records, and no half-written
files."""

import gzip
import json
import random
from copy import deepcopy

import pytest
import zstandard

from parallel_core.data.instruction import deepseek4
from parallel_core.data.instruction.columns import OPENAI_TAGS, Columns, Tags, mapped
from parallel_core.data.instruction.conversations import Conversation, of_openai, of_sharegpt
from parallel_core.data.instruction.options import InstructionOptions
from parallel_core.data.instruction.preprocess import preprocess_instructions
from parallel_core.data.instruction.records import BadRecord, read_records
from parallel_core.data.instruction.templates import TABLE, load_table
from parallel_core.data.instruction.tool_texts import name_and_arguments
from parallel_core.data.tokenizers import TokenizerOptions
from tests.support.instruction import inputs

HANDLERS = {
    "AlpacaStyleInstructionHandler": {"instruction": "q", "input": "i", "output": "a"},
    "SharegptStyleInstructionHandler": {
        "conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]
    },
    "OpenAIInstructionHandler": {
        "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "tool_calls": []}],
        "tools": "[]",
    },
}
WRONG = (None, 7, True, "", "x", [], {}, [[]], [None], [{}], [3], {"a": 1}, [["q"]], [["q", 1]], [{"a": 1}], "\ud800")


@pytest.fixture(scope="module")
def tokenizer():
    return TokenizerOptions("PretrainedFromHF", tokenizer_model=str(inputs() / "tokenizers" / "hf_qwen2"))


def damaged(value, draw):
    """A copy of the value in which one part, at any depth, is replaced, renamed or left out."""
    value = deepcopy(value)
    holder = value
    while True:
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        key = draw.choice(keys)
        inner = holder[key]
        if isinstance(inner, dict | list) and inner and draw.random() < 0.7:
            holder = inner
            continue
        if isinstance(holder, dict) and draw.random() < 0.3:
            moved = holder.pop(key)
            if draw.random() < 0.5:
                holder[f"{key}s"] = moved
        else:
            holder[key] = draw.choice(WRONG)
        return value


def as_line(row, draw):
    """The row as a line of JSON, sometimes cut, doubled, or with bytes that are no UTF-8."""
    line = json.dumps(row).encode()
    return draw.choice([line, line, line, line, line[: draw.randrange(1, len(line))], line + line, line[:9] + b"\xff"])


def preprocessed(tmp_path, tokenizer, lines, **more):
    """Preprocess the lines: None if all three data sets were written (and removed again), else the error, which leaves
    no file."""
    (tmp_path / "in.jsonl").write_bytes(b"\n".join(lines))
    out = tmp_path / "out"
    out.mkdir(exist_ok=True)
    given = {"prompt_type": "qwen", "input": str(tmp_path / "in.jsonl"), "output_prefix": out / "data", **more}
    try:
        preprocess_instructions(InstructionOptions(**given), tokenizer)
    except ValueError as error:
        assert str(error) and not list(out.iterdir())
        return str(error)
    files = sorted(out.iterdir())
    assert [file.suffix for file in files] == [".bin", ".idx"] * 3
    for file in files:
        file.unlink()
    return None


@pytest.mark.slow
@pytest.mark.parametrize("handler_name", HANDLERS)
@pytest.mark.parametrize("on_bad_record", ["skip", "stop", "reference"])
def test_damaged_records(handler_name, on_bad_record, tmp_path, tokenizer):
    """A damaged record behind a good one, 20 draws for each handler: with `skip` it is left out, otherwise some stop
    the run with an error that names line 2."""
    good = HANDLERS[handler_name]
    ends = set()
    for seed in range(20):
        draw = random.Random(f"{handler_name} {seed}")
        lines = [json.dumps(good).encode(), as_line(damaged(good, draw), draw)]
        error = preprocessed(tmp_path, tokenizer, lines, handler_name=handler_name, on_bad_record=on_bad_record)
        if error is not None:
            assert "in.jsonl, line 2: " in error
        ends.add(error is None)
    assert ends == {True} if on_bad_record == "skip" else False in ends


@pytest.mark.slow
def test_damaged_templates(tmp_path, tokenizer):
    """100 damaged tables of templates: either the damage is harmless, or the error names the table or --prompt-type."""
    table = list(load_table(TABLE).values())
    good = [json.dumps(HANDLERS["AlpacaStyleInstructionHandler"]).encode()]
    errors = 0
    for seed in range(100):
        draw = random.Random(seed)
        row = draw.choice(table)
        broken = json.dumps([damaged(row, draw)])
        broken = broken[: draw.randrange(len(broken))] if draw.random() < 0.2 else broken
        path = tmp_path / "templates.json"
        path.write_text(broken)
        given = {"handler_name": "AlpacaStyleInstructionHandler", "prompt_type": row["name"], "prompt_type_path": path}
        error = preprocessed(tmp_path, tokenizer, good, **given)
        if error is not None:
            assert "templates.json" in error or "--prompt-type" in error
            errors += 1
    assert 30 < errors < 100


@pytest.mark.parametrize("content", ["", "[", "{}", "[1]", '[{"name": 3}]', "[]", "\ud800"])
def test_files_that_are_no_table(content, tmp_path, tokenizer):
    """A --prompt-type-path whose file is no table of templates is an error with its name."""
    path = tmp_path / "templates.json"
    path.write_bytes(content.encode("utf-8", "surrogatepass"))
    error = preprocessed(
        *(tmp_path, tokenizer, [b'{"instruction": "q", "output": "a"}']),
        handler_name="AlpacaStyleInstructionHandler",
        prompt_type_path=path,
    )
    assert error and "templates.json" in error


@pytest.mark.parametrize("ending", ["", ".gz", ".zst"])
@pytest.mark.parametrize(("name", "content"), [("a.jsonl", b'{"a": 1}\n{"a": 2}'), ("a.json", b'[{"a": 1}, {"a": 2}]')])
def test_packed_files_are_read(tmp_path, name, content, ending):
    """JSON lines and a JSON list are read alike, plain and packed by gzip or zstd."""
    packed = {"": content, ".gz": gzip.compress(content), ".zst": zstandard.compress(content)}[ending]
    (tmp_path / f"{name}{ending}").write_bytes(packed)
    assert [record.row for record in read_records(tmp_path / f"{name}{ending}")] == [{"a": 1}, {"a": 2}]


TURNS = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]


def test_tools_of_another_type_are_a_bad_record():
    """OpenAI's tools that are a number, and a function call whose name is null, are bad records."""
    with pytest.raises(BadRecord, match="'tools' must be JSON in a text: is 5"):
        of_openai({"messages": TURNS, "tools": 5}, Columns(messages="messages", tools="tools", tags=OPENAI_TAGS))
    with pytest.raises(BadRecord, match="name of a function call must be a text"):
        name_and_arguments('{"name": null, "arguments": {}}')


CALL = {"id": ["1"], "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    "changed, message",
    [
        ({"tool_calls": [CALL]}, "id of a tool call must be a text"),
        ({"reasoning_content": 5}, "reasoning_content must be a text"),
        ({"reasoning_content": ["t"]}, "reasoning_content must be a text"),
    ],
)
def test_answers_of_deepseek_with_other_types_are_a_bad_record(changed, message):
    """DeepSeek V4's format refuses ids of tool calls that are lists, and thoughts that are no text."""
    conversation = Conversation(TURNS[:1], [{**TURNS[1], **changed}])
    with pytest.raises(BadRecord, match=message):
        deepseek4.written(conversation, True, False)
    observed = {"role": "observation", "content": "r", "tool_call_id": ["1"]}
    with pytest.raises(BadRecord, match="tool_call_id of a tool call must be a text"):
        deepseek4.written(Conversation([*TURNS, observed], TURNS[1:]), True, False)


def test_names_that_are_not_there_name_nothing():
    """A message without a role has none of the roles without a tag, and columns named null are not read as "None"."""
    few = Columns(tags=Tags("role", "content", "user", "assistant", None, None, None))
    assert few.tags.roles == {"user": "user", "assistant": "assistant"}
    without = [{"content": "q"}, TURNS[1]]
    for read, columns in ((of_openai, few), (of_sharegpt, few)):
        with pytest.raises(BadRecord, match=r"unknown role|roles out of order"):
            read({"conversations": without}, columns)
    unread = mapped(Columns(), ("messages",), {"messages": None})
    with pytest.raises(BadRecord, match="must be a list of messages: is None"):
        of_sharegpt({"None": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}, unread)
