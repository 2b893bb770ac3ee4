"""Instruction fine-tuning's order of samples, batches and masks equal those recorded from MindSpeed-LLM's trainer."""

from contextlib import nullcontext
from functools import cache
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from parallel_core.data.instruction import from_config
from parallel_core.data.instruction.dataset import Collator, InstructionDataset, order_of_samples, split_bounds
from parallel_core.data.instruction.samples import Conversations, SampleRules, sampled
from parallel_core.data.loader import build_step_loader
from parallel_core.data.preprocess.command_line import main
from parallel_core.data.tokenizers.base import Facts
from parallel_core.data.tokenizers.huggingface_folder import HuggingFaceFolder
from tests.support.engine import TINY, config_of
from tests.support.instruction import CASES, flags, hashed_array
from tests.support.tokenizer_records import unpack

RECORDED = CASES["dataset"]
EOS, PAD = 3002, 3000
"""Ids of <|im_end|> and <|endoftext|> in the cases' tokenizer."""
SAMPLES = {"train": None, "valid": 10, "test": 5}


@cache
def folder():
    """The temporary folder of this module's preprocessed data."""
    return TemporaryDirectory()


@cache
def conversations(name):
    """The path prefix of the data sets that the preprocessing case `name` writes, made once."""
    out = Path(folder().name, name)
    out.mkdir()
    main(flags(CASES["preprocess"][name], out))
    return out / "data"


def orders(case):
    """{part: order of its samples} of a case, for each of train, valid and test that has a share of the split."""
    given, data = case["flags"], IndexedLength(conversations(case["preprocessed"]))
    parts = zip(SAMPLES.items(), split_bounds(given.get("split", "100,0,0"), len(data)), strict=True)
    return {
        part: order_of_samples(
            *bounds,
            samples or case["train_samples"],
            given.get("seed", 1234),
            shuffle=not given.get("no_shuffle"),
            shuffle_all=bool(given.get("full_shuffle_instruction_dataset")),
            batch=given["global_batch_size"] if given.get("padded_samples") else None,
        )
        for (part, samples), bounds in parts
        if bounds[1] > bounds[0]
    }


class IndexedLength:
    """The number of conversations of a data set, also of one with pairwise answers, which `Conversations` refuses."""

    def __init__(self, prefix):
        self.names = list(Path(prefix).parent.glob("*_input_ids_document.idx"))

    def __len__(self):
        from parallel_core.data.indexed_dataset import IndexedDataset

        return len(IndexedDataset(str(self.names[0].with_suffix(""))))


def dataset(case):
    """The training data set of a case, as --is-instruction-dataset makes it."""
    given, length = case["flags"], case["seq_length"]
    rules = SampleRules(
        seq_length=length,
        eos=EOS,
        reset_attention_mask=bool(given.get("reset_attention_mask")),
        neat=bool(given.get("neat_pack")),
        cut_max_seqlen=bool(given.get("cut_max_seqlen")),
        efficient_eos=given.get("prompt_type") == "baichuan2",
    )
    collator = Collator(
        pad=PAD,
        multiple=given.get("pad_to_multiple_of", 8) if given.get("no_pad_to_seq_lengths") else length,
        left=given.get("tokenizer_padding_side") == "left",
        resets_positions=bool(given.get("reset_position_ids")),
    )
    data, order = Conversations(conversations(case["preprocessed"])), orders(case)["train"]
    return InstructionDataset(data, order, rules, collator, len(data))


def micro_batches(case, data):
    """The case's sampler: lists of sample numbers, one for each micro-batch of its data-parallel rank."""
    given = case["flags"]
    rank, size = given.get("dp", (0, 1))
    return build_step_loader(
        data,
        given.get("consumed", 0),
        micro_batch_size=given["micro_batch_size"],
        micro_batch_num=1,
        data_parallel_rank=rank,
        data_parallel_size=size,
        dataloader_type=given.get("dataloader_type", "single"),
        drop_last=False,
    ).sampler


@pytest.mark.parametrize(
    ("split", "size", "bounds"),
    [
        ("0,50,50", 3, [(0, 0), (0, 1), (1, 3)]),
        ("0,0,1", 3, [(0, 0), (0, 0), (0, 3)]),
        ("0,50,50", 1, [(0, 0), (0, 1), (1, 1)]),
        ("1,1,1", 2, [(0, 0), (0, 1), (1, 2)]),
    ],
)
def test_what_rounding_leaves_goes_to_a_split_with_a_share(split, size, bounds):
    """Splits without a share have no conversation, and no split begins before the first one."""
    assert split_bounds(split, size) == bounds


@pytest.mark.parametrize("name", RECORDED)
def test_order_of_samples(name):
    """The order of samples of each part of the split equals the recorded one, shuffled or not, and so does its
    length."""
    case = RECORDED[name]
    made = orders(case)
    assert {part: hashed_array(order) for part, order in made.items()} == {
        part: case["arrays"][f"{part}.order"] for part in made
    }
    assert {part: len(order) for part, order in made.items()} == {
        part: number for part, number in case["datasets"].items() if number is not None
    }


@pytest.mark.parametrize("name", [name for name in RECORDED if name != "pairwise"])
def test_batches(name):
    """Sample numbers of the first 8 micro-batches, and ids, labels, masks, positions and documents of three, equal the
    recorded ones."""
    case = RECORDED[name]
    data = dataset(case)
    numbers = list(islice(micro_batches(case, data), 16))
    first = numbers[:8]
    assert (
        hashed_array(np.array(first, np.int32)[: case["arrays"]["batch_indices"][0][0]])
        == (case["arrays"]["batch_indices"])
    )
    if case["flags"].get("dataloader_type") == "cyclic":
        numbers = numbers[8:]  # MindSpeed-LLM's loader goes on after the numbers that were listed
    for number in range(3):
        samples = [data[i] for i in numbers[number]]
        check_batch(case, number, data.collate_samples.padded(samples), data.collate(samples))


def check_batch(case, number, padded, batch):
    """Compare micro-batch `number` with the record: `padded` are its rows as MindSpeed-LLM has them, `batch` what the
    model reads, whose labels and mask are one position earlier."""
    recorded, given = case["arrays"], case["flags"]
    for part in ("input_ids", "labels", "attention_mask"):
        array = padded[part]
        as_labels = case.get("with_labels_as_ids", {}).get(f"loader.{number}.{part}")
        # MindSpeed-LLM ends a cut question with -100, which is no id; this project keeps the token
        if as_labels is not None:
            array = np.where(np.array(as_labels) == -100, np.int32(-100), array)
        assert hashed_array(array) == recorded[f"loader.{number}.{part}"], (number, part)
    labels, counts = padded["labels"], padded["labels"] != -100
    assert hashed_array(labels) == recorded[f"train.{number}.labels"]
    assert hashed_array(counts.astype(np.int32)) == recorded[f"train.{number}.loss_mask"]
    assert np.array_equal(batch["tokens"], padded["input_ids"])
    assert np.array_equal(batch["loss_mask"][:, :-1], counts[:, 1:]) and not batch["loss_mask"][:, -1].any()
    assert np.array_equal(batch["labels"][batch["loss_mask"] > 0], labels[:, 1:][counts[:, 1:]])
    length = labels.shape[1]
    starts = batch.get("document_starts", np.zeros(labels.shape, np.int32))
    if given.get("reset_attention_mask"):
        assert hashed_array(batch["position_ids"]) == recorded[f"train.{number}.position_ids"]
        ends = ends_of(starts, padded["input_ids"], bool(given.get("neat_pack")))
        assert hashed_array(np.array(ends, np.int32)) == recorded[f"train.{number}.actual_seq_len"]
        return
    real = padded["attention_mask"].astype(bool)
    there = ~np.tri(length, dtype=bool) | ~real[:, None, None, :]
    assert hashed_array(np.packbits(there)) == recorded[f"train.{number}.attention_mask_packed"]
    places = np.arange(length)
    ours = (places[None, None, :] > places[None, :, None]) | (places[None, None, :] < starts[:, :, None])
    assert np.array_equal(ours[real], there[:, 0][real])


def ends_of(starts, ids, neat):
    """Ends of documents, counted through the concatenated rows; a row's remainder without an end of text has none
    unless `neat`."""
    ends = []
    for row, (begin, tokens) in enumerate(zip(starts, ids, strict=True)):
        changes = np.flatnonzero(begin[1:] != begin[:-1]) + 1
        last = [len(tokens)] if neat or tokens[-1] == EOS else []
        ends += [row * len(tokens) + end for end in (*changes, *last)]
    return ends


@pytest.mark.parametrize(("size", "filled"), [(None, [0, 1, 2, 0, 1, 2, 0, 1]), (5, [0, 1, 2, 0, 1, 2, 3, 4])])
def test_passes_are_filled_up_with_what_there_is(size, filled):
    """A pass that is shorter than a batch is filled up with the data's conversations again and again."""
    assert order_of_samples(0, 3, 3, 1, shuffle=False, batch=8, size=size).tolist() == filled


@pytest.mark.parametrize("efficient_eos, kept", [(False, [0, 1, 2]), (True, [0, 1, 4])])
def test_an_answer_without_a_question_is_cut_at_its_end(efficient_eos, kept):
    """A conversation that is too long and has no label -100 keeps its first tokens, and its last with
    `efficient_eos`."""
    ids = np.arange(5, dtype=np.int32)
    found = sampled(
        {"input_ids": ids, "attention_mask": np.ones_like(ids), "labels": ids.copy()},
        SampleRules(seq_length=3, efficient_eos=efficient_eos),
    )
    assert found["input_ids"].tolist() == found["labels"].tolist() == kept


def test_fixed_lengths_cut_documents_anywhere():
    """--fix-sub-seq-length 3 begins a document at every third position."""
    rules = SampleRules(seq_length=8, reset_attention_mask=True, fixed_length=3)
    ids = np.arange(8, dtype=np.int32)
    sample = sampled({"input_ids": ids, "labels": ids, "attention_mask": ids}, rules)
    assert sample["document_starts"].tolist() == [0, 0, 0, 3, 3, 3, 6, 6]


@pytest.mark.parametrize(("flag", "is_wrong"), [("", True), ("--neat-pack", False), ("--fix-sub-seq-length 3", False)])
def test_an_end_of_text_is_needed_where_it_is_looked_for(monkeypatch, flag, is_wrong):
    """A tokenizer without an end of text is refused with --reset-attention-mask alone; numbered documents and pieces of
    a fixed length need none."""
    monkeypatch.setattr(from_config, "own_ids", lambda config: Facts(8, pad=0))
    config = config_of(f"{TINY} --is-instruction-dataset --data-path x --reset-attention-mask {flag}", 1)
    with pytest.raises(ValueError, match="--eos-token-id") if is_wrong else nullcontext():
        assert from_config._ends(config, None) == (None, 0)


def test_special_tokens_are_those_that_preprocessing_has(tmp_path):
    """An end of text that --tokenizer-kwargs names is training's, too; a folder that its own code reads is not opened
    without it."""
    folder = unpack(tmp_path) / "hf_qwen2"
    flags = f"{TINY} --padded-vocab-size 4096 --tokenizer-type HuggingFaceTokenizer --tokenizer-model"
    named = config_of(f"{flags} {folder} --tokenizer-kwargs eos_token <|im_start|>", 1)
    ids = HuggingFaceFolder(folder).vocab
    assert from_config.own_ids(named).eos == ids["<|im_start|>"]
    assert from_config.own_ids(config_of(f"{flags} {folder}", 1)).eos not in (None, ids["<|im_start|>"])
    (tmp_path / "own").mkdir()
    trusted = config_of(f"{TINY} --is-instruction-dataset --data-path x", 1)
    trusted.dataset_config.tokenizer_type = "HuggingFaceTokenizer"
    trusted.dataset_config.tokenizer_model = str(tmp_path / "own")
    trusted.dataset_config.tokenizer.trust_remote_code = True
    assert from_config._folder(trusted) is None


def test_answers_to_compare_are_refused():
    """Data sets of pairwise preferences (a chosen and a rejected answer) are refused, as fine-tuning has no use for
    them."""
    with pytest.raises(ValueError, match="holds answers to compare"):
        Conversations(conversations("pairwise.qwen"))


def test_missing_data_are_named(tmp_path):
    """Instruction data that do not exist are an error with the file's name."""
    with pytest.raises(ValueError, match=r"data_packed_input_ids_document\.idx does not exist"):
        Conversations(tmp_path / "data")
