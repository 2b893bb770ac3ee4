"""Megatron's --sft: conversations and packed samples equal those recorded from its SFTTokenizer and SFTDataset."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from parallel_core.config.notations import parse_blend
from parallel_core.data.blended import BlendedMegatronDatasetBuilder
from parallel_core.data.datasets import datasets_provider
from parallel_core.data.instruction.records import BadRecord
from parallel_core.data.instruction.sft import PROMPT_FORMATS, SFTDataset, SFTDatasetConfig, conversations, encoded
from parallel_core.data.tokenizers import TokenizerOptions, build_tokenizer
from tests.support.engine import config_of
from tests.support.instruction import CASES, flags, hashed_array, inputs

pytestmark = pytest.mark.slow

RECORDED = {f"{name}.{tree}": case for name, trees in CASES["sft"].items() for tree, case in trees.items()}
NO_PADDING = "aligned_without_special_tokens"
SPLITS = ("train", "valid", "test")


def value(given, flag):
    """The value behind `flag` in a list of words."""
    return given[given.index(flag) + 1]


def case_of(name):
    """(recorded case, its flags, its prompt format); for cases of Megatron's main branch (`.head`) the format appends
    no end-of-document id."""
    case, folder = RECORDED[name], inputs() / "megatron_sft" / name.split(".")[0]
    given = flags(case, of_case=folder)
    form = PROMPT_FORMATS[value(given, "--sft-tokenizer-prompt-format")]
    return case, given, replace(form, appends_eod=False) if name.endswith(".head") else form


def tokenizer_for(given):
    """The SFTTokenizer that the flags ask for."""
    prompt_format = value(given, "--sft-tokenizer-prompt-format")
    folder = value(given, "--tokenizer-model")
    return build_tokenizer(
        TokenizerOptions("SFTTokenizer", tokenizer_model=folder, sft_tokenizer_prompt_format=prompt_format)
    )


def datasets(name):
    """(train, valid, test) of a case."""
    case, given, form = case_of(name)
    start = given.index("--data-path") + 1
    stop = next(at for at in range(start, len(given)) if given[at].startswith("--"))
    config = SFTDatasetConfig(
        random_seed=int(value(given, "--seed")),
        sequence_length=int(value(given, "--seq-length")),
        tokenizer=tokenizer_for(given),
        blend=parse_blend(given[start:stop]),
        split=value(given, "--split"),
        form=form,
        context_parallel_size=int(value(given, "--context-parallel-size")),
    )
    return BlendedMegatronDatasetBuilder(SFTDataset, case["train_valid_test_samples"], lambda: True, config).build()


def sample(data, number):
    """Sample `number` of a data set or blend, packed from conversations, before training's masks are made."""
    if isinstance(data, SFTDataset):
        return data.packed(number)
    return data.datasets[data.dataset_index[number]].packed(int(data.dataset_sample_index[number]))


BAD = ["bad_rows.v0.16.1", "bad_rows.head"]
GOOD = [
    name for name, case in RECORDED.items() if case["status"] == "ok" and not name.startswith(("bad_rows", NO_PADDING))
]


@pytest.mark.parametrize("name", GOOD)
def test_samples(name):
    """Tokens, labels, positions, loss masks and starts of conversations of each recorded sample are equal, and so are
    the lengths of the splits."""
    recorded, made = RECORDED[name], dict(zip(SPLITS, datasets(name), strict=True))
    assert {split: None if data is None else len(data) for split, data in made.items()} == recorded["lengths"]
    for key, expected in recorded["arrays"].items():
        split, number, part = key.split(".")
        if split == "batch" or part in ("dataset_id", "max_seqlen"):
            continue
        if part == "loss_mask":
            array = made[split][int(number)]["loss_mask"]
        else:
            array = sample(made[split], int(number))[part]
            if part == "cu_seqlens" and name.endswith(".head"):  # Megatron's array has one entry for each token
                array = np.pad(array, (0, expected[0][0] - len(array)), constant_values=array[-1])
        assert hashed_array(array) == expected, key


def test_rows_that_are_too_long_there_are_cut():
    """A row on which Megatron 0.16.1 fails because it is too long is cut to a sample whose last position has no
    loss."""
    (train, _, _) = datasets("aligned_64_truncates.v0.16.1")
    assert RECORDED["aligned_64_truncates.v0.16.1"]["sample_errors"]["train.1"].startswith("TypeError")
    assert train[1]["tokens"].shape == (64,) and train[1]["loss_mask"][-1] == 0


def test_rows_of_a_sample_are_named():
    """A sample's file and line are told, also by a blend of files, for an error about its values."""
    blend = datasets("aligned_blend.v0.16.1")[0]
    part, sample_of_part = int(blend.dataset_index[3]), int(blend.dataset_sample_index[3])
    assert blend.documents_of(3) == blend.datasets[part].documents_of(sample_of_part)
    assert re.search(r"line \d+$", blend.documents_of(3))
    blend.datasets[part] = [None]
    assert blend.documents_of(3) == f"sample {sample_of_part} of data set {part}"


@pytest.mark.parametrize("name", [name for name in GOOD if RECORDED[name]["conversations"]] + BAD)
def test_conversations(name):
    """Ids and targets of each recorded conversation are equal; where Megatron fails, the conversation is a BadRecord
    with a reason."""
    case, given, form = case_of(name)
    tokenizer = tokenizer_for(given)
    for recorded in case["conversations"]:
        messages = recorded["messages"]
        if "error" in recorded and not any(message["role"] == "tool" for message in messages):
            with pytest.raises(BadRecord):
                encoded(conversations({"messages": messages})[0], tokenizer, form)
        elif "error" not in recorded:
            made = encoded(messages, tokenizer, form)
            for part, ids in zip(("tokens", "targets"), made, strict=True):
                number, hashed = recorded[part]
                assert hashed_array(np.array(ids, np.int32)) == [[number], hashed]


RUN = (
    "--num-layers 1 --hidden-size 8 --num-attention-heads 1 --seq-length 64 --max-position-embeddings 64 --sft "
    "--micro-batch-size 1 --train-iters 1 --lr 1e-3 --tokenizer-type SFTTokenizer --split 100,0,0"
)


def provider(path, more=""):
    """The function that gives a run's data sets for the file `path`; "qwen" in `more` chooses Qwen2's tokenizer."""
    folder = inputs() / "tokenizers" / ("hf_qwen2" if "qwen" in more else "hf_nemotron")
    line = f"{RUN} --tokenizer-model {folder} --data-path {path} {more.replace('qwen', '')}"
    return datasets_provider(config_of(line, 1))


def test_flags_make_the_data():
    """--sft on a command line gives 30 training samples of the arrays and types that the model reads."""
    train, valid, test = provider(inputs() / "input" / "messages.jsonl")((30, 0, 0))
    assert len(train) == 30 and valid is None and test is None
    assert {name: array.dtype.name for name, array in train[0].items()} == {
        "tokens": "int32",
        "labels": "int32",
        "loss_mask": "float32",
        "position_ids": "int32",
        "document_starts": "int32",
    }


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"messages": []}, "'messages' must be a list"),
        ({"messages": [{"role": "user"}]}, "'messages' must be a list"),
        ({"messages": [{"role": "critic", "content": "x"}]}, "role 'critic' must be one of system, user"),
        ({"messages": [{"role": "system", "content": "s"}, {"role": "assistant", "content": "a"}]}, "must follow"),
        ("{", "is no JSON"),
    ],
)
def test_bad_rows_are_named_before_training(row, reason, tmp_path):
    """A row that is no conversation is an error with file and line when the data are built."""
    path = tmp_path / "rows.jsonl"
    good = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    path.write_text(json.dumps(good) + "\n" + (row if isinstance(row, str) else json.dumps(row)))
    with pytest.raises(ValueError, match=r"rows\.jsonl, line 2: .*" + reason[:20].replace("[", r"\[")):
        provider(path)


def test_rows_without_tokens_are_named_when_they_are_read(tmp_path):
    """A conversation whose roles the format does not write, so that it has no token, is an error with file and line
    when its sample is read."""
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"messages": [{"role": "User", "content": "q"}]}))
    train = provider(path)((1, 0, 0))[0]
    with pytest.raises(ValueError, match=r"rows\.jsonl, line 1: has no token"):
        train[0]


def test_a_tokenizer_without_the_formats_padding_is_refused():
    """A prompt format whose padding token the tokenizer lacks is refused."""
    with pytest.raises(ValueError, match="fills up samples with <SPECIAL_233>"):
        provider(inputs() / "input" / "messages.jsonl", "qwen")
