"""Files of prompts (--prompts): which lines are read, and that each wrong line is named."""

import pytest

from parallel_core.checkpoint.convert.huggingface.tokenizer import end_ids, ids_in
from parallel_core.data.prompts import Prompt, read_prompts


def test_each_kind_is_read(tmp_path):
    """A line has a text, ids or messages; empty lines are left out."""
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"text": "a b"}\n\n{"ids": [3, 1]}\n{"messages": [{"role": "user", "content": "x"}]}\n')
    text, ids, messages = read_prompts(file)
    assert (text, ids) == (Prompt(text="a b"), Prompt(ids=(3, 1)))
    assert messages == Prompt(messages=({"role": "user", "content": "x"},))


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85"], ids=ascii)
@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=ascii)
def test_separators_within_a_text_end_no_line(separator, end, tmp_path):
    """JSON texts may hold Unicode's separators of lines; only line feeds, also behind carriage returns, end a line."""
    (tmp_path / "p").write_text(f'{{"text": "a{separator}b"}}{end}{{"text": "c"}}{end}', encoding="utf-8", newline="")
    assert read_prompts(tmp_path / "p") == [Prompt(text=f"a{separator}b"), Prompt(text="c")]


WRONG = [
    "{",
    "[" * 100000,
    "7",
    "{}",
    '{"text": "a", "ids": [1]}',
    '{"text": ""}',
    '{"text": 3}',
    '{"ids": []}',
    '{"ids": [1.5]}',
    '{"ids": [true]}',
    '{"ids": [-1]}',
    '{"messages": [{"role": "user"}]}',
    '{"messages": "hello"}',
]


def test_all_wrong_lines_are_named_at_once(tmp_path):
    """Each wrong line is reported with file and number in one error."""
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(["", *WRONG, '{"text": "right"}']))
    with pytest.raises(ValueError) as error:
        read_prompts(file)
    errors = str(error.value).split("\n")
    assert [line.split(": ")[0] for line in errors] == [f"--prompts {file}, line {n}" for n in range(2, len(WRONG) + 2)]


@pytest.mark.parametrize(("content", "words"), [(b"\n\n", "has no prompt"), (b'{"text": "\xff"}', "not UTF-8")])
def test_files_without_prompts(content, words, tmp_path):
    """A file without a prompt, or that is no UTF-8, is an error."""
    (tmp_path / "p").write_bytes(content)
    with pytest.raises(ValueError, match=words):
        read_prompts(tmp_path / "p")


class Tokenizer:
    """The methods of a tokenizer that prompts use: 1 before a text, ids that are characters."""

    def encode(self, text, special=False):
        return [1, *map(ord, text)] if special else list(map(ord, text))

    def apply_chat_template(self, messages, add_generation_prompt=False):
        words = "".join(f"<{message['role']}>{message['content']}" for message in messages)
        return self.encode(words + "<assistant>" * add_generation_prompt)


@pytest.mark.parametrize(
    ("prompt", "ids"),
    [
        (Prompt(ids=(3, 1)), [3, 1]),
        (Prompt(text="a"), [1, 97]),
        (Prompt(messages=({"role": "user", "content": "x"},)), list(map(ord, "<user>x<assistant>"))),
    ],
)
def test_ids_of_a_prompt(prompt, ids):
    """A prompt's ids are its own; those of its text with the tokenizer's beginning; or of its messages up to the
    assistant's turn."""
    assert prompt.tokens(Tokenizer()) == ids


@pytest.mark.parametrize(
    ("said", "ids"), [("{}", set()), ('{"eos_token_id": 2}', {2}), ('{"eos_token_id": [2, 7]}', {2, 7}), (None, set())]
)
def test_ids_that_end_what_a_folders_model_says(said, ids, tmp_path):
    """`end_ids` reads one or several eos_token_id of generation_config.json; none if there is no such file or key."""
    if said is not None:
        (tmp_path / "generation_config.json").write_text(said)
    assert end_ids(tmp_path) == ids


@pytest.mark.parametrize("reads", [end_ids, ids_in])
def test_a_file_of_ids_that_is_no_object_is_named(reads, tmp_path):
    """A generation_config.json, or config.json, that is a JSON list is an error with its path."""
    for name in ("generation_config.json", "config.json"):
        (tmp_path / name).write_text('["eos_token_id"]')
    with pytest.raises(ValueError, match=r"config\.json: expected a JSON object, not list"):
        reads(tmp_path)
