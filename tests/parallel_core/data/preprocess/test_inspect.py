"""`inspect` of a data set: the printed text."""

import numpy as np
import pytest

from parallel_core.data.indexed_dataset import IndexedDatasetBuilder
from parallel_core.data.preprocess.command_line import main
from tests.parallel_core.data.preprocess.test_merge import write
from tests.support.tokenizer_records import unpack

NULL = ["--tokenizer-type", "NullTokenizer", "--vocab-size", "50"]


def inspect(capsys, *arguments) -> str:
    """The output of `mapping inspect` with these arguments, which must succeed."""
    assert main(["inspect", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_sizes_lengths_and_a_sample(tmp_path, capsys):
    """Documents, sequences, tokens and their type, quantiles of lengths, largest id, documents that end with the
    end-of-document id, and the first text are printed."""
    write(tmp_path / "d", [[[1, 2, 50]], [], [[3], [4, 50]], [[5] * 99]])
    said = inspect(capsys, tmp_path / "d", *NULL)
    for line in (
        "documents: 4, 1 of them empty",
        "sequences: 4\n",
        "tokens: 105 of type uint16",
        "shortest 1, 10% 1, median 2, 90% 70, longest 99, mean 26.2",
        "largest id: 50",
        "documents that end with the end-of-document id 50: 2 of 3 that have tokens",
        "sequence 0 (3 tokens):\n  '1 2 50'",
    ):
        assert line in said


def test_without_a_tokenizer_ids_are_shown(tmp_path, capsys):
    """--samples N prints the ids of N sequences, each cut after 64, where no tokenizer is given."""
    write(tmp_path / "d", [[[1, 2]], [[3]], [list(range(100))]])
    said = inspect(capsys, tmp_path / "d", "--samples", 3)
    assert "sequence 0 (2 tokens):\n  1 2\n" in said and "sequence 2 (100 tokens):\n  0 1 2" in said
    assert said.rstrip().endswith("63 ...")
    assert "sequence" not in inspect(capsys, tmp_path / "d", "--samples", 0).replace("sequences", "").replace(
        "in a sequence", ""
    )


def test_another_name_of_the_tokenizer_is_read(tmp_path, capsys):
    """--patch-tokenizer-type with --tokenizer-model shows the text of a sequence."""
    write(tmp_path / "d", [[[1, 2]]])
    folder = unpack(tmp_path) / "hf_qwen2"
    given = ["--patch-tokenizer-type", "Qwen2Tokenizer", "--tokenizer-model", folder]
    assert "sequence 0 (2 tokens):\n  '" in inspect(capsys, tmp_path / "d", *given)


def test_ids_of_another_tokenizer_are_noticed(tmp_path, capsys):
    """Ids beyond the tokenizer's vocabulary are counted, with the remark that another tokenizer made the data."""
    write(tmp_path / "d", [[[1, 60, 70]]])
    assert "made with another tokenizer: 2 ids are none of its 51" in inspect(capsys, tmp_path / "d", *NULL)


def test_an_empty_data_set_is_shown(tmp_path, capsys):
    """A data set of empty documents alone is printed without an error."""
    write(tmp_path / "d", [[], []])
    assert "documents: 2, 2 of them empty\nsequences: 0\n" in inspect(capsys, tmp_path / "d", *NULL)


@pytest.mark.parametrize("name", ["d", "d_packed", "d_packed_input_ids_document"])
def test_instruction_data_show_which_tokens_count(tmp_path, capsys, name):
    """Instruction data print which tokens count in the loss, by training's rule: the label of a token is predicted at
    the position before it. Prefixes with and without `_packed` and the key name the same data."""
    for key, tokens in {"input_ids": [9, 1, 2, 3, 4, 5], "labels": [9, -100, -100, 3, 4, -100]}.items():
        with IndexedDatasetBuilder(f"{tmp_path}/d_packed_{key}_document", np.int32) as builder:
            builder.add_document(tokens, [len(tokens)])
            builder.finalize()
    said = inspect(capsys, tmp_path / name, *NULL)
    assert "sample 0 (6 tokens; + counts in the loss, - does not):\n  - '9 1 2'\n  + '3 4'\n  - '5'\n" in said
    assert "tokens that count in the loss: 2 (33.3%)" in said


def test_instruction_data_of_an_empty_sample_are_shown(tmp_path, capsys):
    """Instruction data with nothing but a sequence of no tokens are printed without an error."""
    for key in ("input_ids", "labels"):
        write(f"{tmp_path}/d_packed_{key}_document", [[[]]], np.int32)
    said = inspect(capsys, tmp_path / "d", *NULL)
    assert "sample 0 (0 tokens;" in said and "largest id" not in said


def test_parts_that_differ_are_refused(tmp_path, capsys):
    """Instruction data whose input_ids and labels differ in length are an error."""
    for key, length in {"input_ids": 3, "labels": 2}.items():
        write(f"{tmp_path}/d_packed_{key}_document", [[[1] * length]], np.int32)
    with pytest.raises(SystemExit):
        inspect(capsys, tmp_path / "d")
    assert "input_ids and labels differ in their lengths" in capsys.readouterr().err


def test_a_missing_data_set_is_an_error(tmp_path, capsys):
    """A data set that does not exist is an error with its .idx, exit code 2."""
    with pytest.raises(SystemExit) as stopped:
        inspect(capsys, tmp_path / "nowhere")
    assert stopped.value.code == 2 and "nowhere.idx does not exist" in capsys.readouterr().err
