"""Prompts in files: what is read, and that every wrong line is named."""

import pytest

from parallel_core.checkpoint.convert.huggingface.tokenizer import end_ids
from parallel_core.data.prompts import Prompt, read_prompts


def test_each_kind_is_read(tmp_path):
    """Empty lines are left out."""
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"text": "a b"}\n\n{"ids": [3, 1]}\n{"messages": [{"role": "user", "content": "x"}]}\n')
    text, ids, messages = read_prompts(file)
    assert (text, ids) == (Prompt(text="a b"), Prompt(ids=(3, 1)))
    assert messages == Prompt(messages=({"role": "user", "content": "x"},))


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
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n".join(["", *WRONG, '{"text": "right"}']))
    with pytest.raises(ValueError) as error:
        read_prompts(file)
    errors = str(error.value).split("\n")
    assert [line.split(": ")[0] for line in errors] == [f"--prompts {file}, line {n}" for n in range(2, len(WRONG) + 2)]


@pytest.mark.parametrize(("content", "words"), [(b"\n\n", "has no prompt"), (b'{"text": "\xff"}', "not UTF-8")])
def test_files_without_prompts(content, words, tmp_path):
    (tmp_path / "p").write_bytes(content)
    with pytest.raises(ValueError, match=words):
        read_prompts(tmp_path / "p")


class Tokenizer:
    """The part of a tokenizer that prompts use."""

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
    """A text with what its tokenizer puts before one; a conversation up to where the assistant speaks."""
    assert prompt.tokens(Tokenizer()) == ids


@pytest.mark.parametrize(
    ("said", "ids"), [("{}", set()), ('{"eos_token_id": 2}', {2}), ('{"eos_token_id": [2, 7]}', {2, 7}), (None, set())]
)
def test_ids_that_end_what_a_folders_model_says(said, ids, tmp_path):
    """One, several, or no file that says it."""
    if said is not None:
        (tmp_path / "generation_config.json").write_text(said)
    assert end_ids(tmp_path) == ids
