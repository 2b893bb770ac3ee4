"""Pai-Megatron-Patch's raw data (LLama-Pretrain-Raw, LLama-SFT-Raw): samples against those of its classes, worked out
by hand."""

import json

import numpy as np
import pytest

from parallel_core.data.datasets import check_data, datasets_provider
from parallel_core.data.instruction.raw import RawDataset, RawRecords, RawRules
from parallel_core.data.tokenizers import Facts, MegatronTokenizer
from tests.support.engine import config_of
from tests.support.instruction import inputs
from tests.support.mapping.lines import reading

BLANK, END, PAD, USER, ASSISTANT = 27, 28, 29, 30, 31
TEXT, CHAT = "LLama-Pretrain-Raw", "LLama-SFT-Raw"


class Letters(MegatronTokenizer):
    """A tokenizer whose ids are 1 for a, 2 for b, ...; its chat template writes for each message the role's id, the
    letters and an end."""

    vocab = {}  # noqa: RUF012

    def __init__(self):
        super().__init__(Facts(32, eod=END, eos=END, pad=PAD))

    def tokenize(self, text):
        return [BLANK if letter == " " else ord(letter) - 96 for letter in text]

    def detokenize(self, token_ids):
        raise NotImplementedError

    def apply_chat_template(self, messages, add_generation_prompt=False, **variables):
        roles = {"user": USER, "assistant": ASSISTANT}
        return [token for one in messages for token in (roles[one["role"]], *self.tokenize(one["content"]), END)]


@pytest.fixture
def samples(tmp_path):
    """A function from rows to ([(tokens, {position: label with loss})], number of rows left out)."""

    def made(rows, form=TEXT, length=5, seq_length=6, pad=PAD):
        path = tmp_path / "rows.jsonl"
        path.write_text("\n".join(map(json.dumps, rows)))
        records = RawRecords(path, Letters(), RawRules(form, length, END, pad))
        data = RawDataset(records, seq_length, 0)
        found = []
        for number in range(len(data)):
            one = data[number]
            assert one["position_ids"].tolist() == list(range(seq_length)) and set(one) <= {
                *("tokens", "labels", "loss_mask", "position_ids")
            }
            places = np.flatnonzero(one["loss_mask"])
            found.append((one["tokens"].tolist(), {int(at): int(one["labels"][at]) for at in places}))
        return found, records.left_out

    return made


def test_question_and_answer_are_one_text(samples):
    """Question, input (after a blank) and answer are one text with an end; the labels with loss are the answer's tokens
    and the end; the rest is padding."""
    rows = [{"instruction": "ab", "output": "cd"}, {"query": "a", "input": "b", "response": "c"}]
    found, _ = samples(rows)
    assert found == [
        ([1, 2, 3, 4, END, PAD], {1: 3, 2: 4, 3: END}),
        ([1, BLANK, 2, 3, END, PAD], {2: 3, 3: END}),
    ]


def test_an_empty_input_leaves_its_blank(samples):
    """An empty `input` still adds its blank behind the question, as in Pai-Megatron-Patch; null adds nothing."""
    rows = [{"instruction": "a", "input": "", "content": "b"}, {"instruction": "a", "input": None, "content": "b"}]
    found, _ = samples(rows)
    assert [tokens for tokens, _ in found] == [[1, BLANK, 2, END, PAD, PAD], [1, 2, END, PAD, PAD, PAD]]


def test_an_answer_that_does_not_end_is_left_out(samples):
    """A row whose end does not fit into length + 1 tokens (the last is a label alone) is left out and counted."""
    found, left_out = samples([{"query": "ab", "output": "cde"}, {"query": "ab", "output": "cdef"}])
    assert found == [([1, 2, 3, 4, 5, PAD], {1: 3, 2: 4, 3: 5, 4: END})] and left_out == 1


def test_the_id_of_padding_is_no_label(samples):
    """A token with the padding id has no loss, also within an answer; within a question such tokens do not count in the
    question's length, so that its last tokens get loss, as in Pai-Megatron-Patch."""
    c = 3
    assert samples([{"query": "ab", "output": "cd"}], pad=c)[0][0][1] == {2: 4, 3: END}
    assert samples([{"query": "cb", "output": "ad"}], pad=c)[0][0][1] == {0: 2, 1: 1, 2: 4, 3: END}


def test_a_vocabulary_without_padding_is_filled_up(samples):
    """Samples of a tokenizer without a padding id are filled with 0, no token is taken for padding, and the end has
    loss."""
    assert samples([{"query": "a", "output": "b"}], pad=None)[0] == [([1, 2, END, 0, 0, 0], {0: 2, 1: END})]


def test_messages_are_written_by_the_chat_template(samples):
    """LLama-SFT-Raw writes a row by the chat template, cut at the length; all behind the question has loss, the
    assistant's role id too; a row whose question fills the sample is left out."""
    found, left_out = samples(
        [
            {"instruction": "a", "input": "b", "output": "c"},  # without a blank between
            {"instruction": "a", "output": "bcd"},  # cut behind the sixth token
            {"instruction": "abcd", "output": "e"},  # leaves no room
        ],
        CHAT,
        length=6,
    )
    assert found == [
        ([USER, 1, 2, END, ASSISTANT, 3], {3: ASSISTANT, 4: 3}),
        ([USER, 1, END, ASSISTANT, 2, 3], {2: ASSISTANT, 3: 2, 4: 3}),
    ]
    assert left_out == 1


RUN = (
    "--num-layers 1 --hidden-size 8 --num-attention-heads 1 --seq-length 128 --max-position-embeddings 128 "
    "--micro-batch-size 1 --train-iters 1 --lr 1e-3 --patch-tokenizer-type LLamaTokenizer --split 99,1,0 "
)


def provided(path, more, sizes=(4, 2, 0)):
    """(train, valid, test) that a run's flags give for the raw file `path` and these numbers of samples."""
    flags = f"{RUN} --load {inputs() / 'tokenizers' / 'hf_qwen2'} --train-data-path {path} --dataset {TEXT} {more}"
    return datasets_provider(config_of(flags, 1))(sizes)


def test_flags_make_the_data(tmp_path):
    """A run's raw data are the records in order, repeated in whole passes until there are enough; --dataloader-type
    cyclic gets one pass; --max-padding-length leaves out longer ones."""
    path = inputs() / "input" / "alpaca_en.jsonl"
    train, valid, test = provided(path, f"--valid-data-path {path}", (1000, 2, 0))
    number = train.samples_per_epoch
    assert test is None and len(valid) == number and len(train) % number == 0 and 1000 <= len(train) < 1000 + number
    assert np.array_equal(train[0]["tokens"], train[number]["tokens"]) and "line 1" in train.documents_of(number)
    assert len(provided(path, "--dataloader-type cyclic", (1000, 0, 0))[0]) == number
    shorter, _, _ = provided(path, "--max-padding-length 32")
    assert shorter.samples_per_epoch < number and not any(shorter[one]["loss_mask"][32:].any() for one in range(4))


def test_a_launch_takes_a_split_beside_files_of_their_own():
    """--split beside the raw files of each part, which public scripts give, is accepted and does nothing, as it cuts up
    --data-path alone; without --dataset it stays a mistake."""
    flags = f"{RUN} --load {inputs() / 'tokenizers' / 'hf_qwen2'} --train-data-path a --valid-data-path b"
    check_data(config_of(f"{flags} --dataset {TEXT}", 1))
    with pytest.raises(ValueError, match="--split cuts up --data-path"):
        check_data(config_of(flags, 1))


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"output": "b"}, "needs one of the keys instruction, query"),
        ({"query": "a"}, "needs one of the keys output, content, response"),
        ({"query": 1, "output": "b"}, "'query' must be a text"),
        ({"query": "a", "input": 1, "output": "b"}, "'input' must be a text"),
        ([1], "must be a JSON object"),
    ],
)
def test_bad_records_are_named_before_training(row, reason, tmp_path):
    """A row without question or answer, or of another type, is an error with file and line when the data are built."""
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"query": "a", "output": "b"}) + "\n" + json.dumps(row))
    with pytest.raises(ValueError, match=f"rows.jsonl, line 2: {reason}"):
        provided(path, "")


def test_a_file_of_which_nothing_fits_is_refused(tmp_path):
    """A raw file without a record that fits the length is an error."""
    (tmp_path / "rows.jsonl").write_text(json.dumps({"query": "a " * 200, "output": "b"}))
    with pytest.raises(ValueError, match="has no record of 128 tokens or fewer"):
        provided(tmp_path / "rows.jsonl", "")


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ("", "needs --train-data-path"),
        ("--train-data-path a.jsonl b.jsonl", "names one file"),
        ("--train-data-path a.jsonl --max-padding-length 65", "must be at most --seq-length 64"),
        ("--train-data-path a.jsonl --reset-attention-mask", "begins documents anew"),
        ("--train-data-path a.jsonl --sft", "does not go with --sft"),
    ],
)
def test_flags_that_do_not_go_together_are_named(change, rule):
    """Raw data without a file, with several, or beside flags that they cannot follow, is one error with the rule."""
    (error,) = reading(f"--dataset {TEXT} {change}").errors
    assert rule in error


def test_names_of_indexed_files_stay_what_they_were():
    """--dataset MMAP means indexed files, not raw data; --max-padding-length beside it does nothing and is no error."""
    found = reading("--dataset MMAP --max-padding-length 4096 --data-path a")
    assert found.errors == [] and found.config.dataset_config.instruction.raw is None
