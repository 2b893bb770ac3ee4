"""GPT data sets: indices and samples equal those recorded from Megatron-Core, and edge cases."""

import json
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from parallel_core.batch.documents import dense_mask
from parallel_core.data.blended import (
    BlendedDataset,
    BlendedMegatronDatasetBuilder,
    Dataset,
    build_train_valid_test_datasets,
)
from parallel_core.data.dataset_config import GPTDatasetConfig
from parallel_core.data.gpt_dataset import GPTDataset
from parallel_core.data.indexed_dataset import IndexedDatasetBuilder
from parallel_core.data.tokenizers import Facts
from tests.support.assets import asset
from tests.support.corpus import write_corpus

CASES = [
    "one_epoch", "size_none", "multi_epoch_separate_last", "multi_epoch_joint", "seed_4321_seq_57", "corpus_b_int32",
    "eod_mask_loss", "reset_position_ids", "reset_attention_mask", "reset_all", "pad_token_in_data",
    "keep_partial_valid", "no_extra_token", "split_100_0_0", "blend_30_70", "blend_30_70_seed_99",
    "blend_unweighted_sized", "blend_unweighted_none", "blend_per_split",
]  # fmt: skip


@cache
def recorded_cases() -> dict:
    """Name of a recorded case -> its config and the results of its splits."""
    return json.loads(asset("golden/data_gpt/cases.json").read_text())["cases"]


@cache
def recorded_arrays() -> dict[str, np.ndarray]:
    """The recorded arrays by CASE/SPLIT/NAME."""
    return dict(np.load(asset("golden/data_gpt/samples.npz")))


def build_case(case: str) -> dict[str, Dataset | None]:
    """Split -> the data set that a recorded case's config gives, None if it has no share."""
    options = recorded_cases()[case]["config"].copy()
    sizes = options.pop("sizes")
    for name in ("blend", "blend_per_split"):
        if options.get(name) is not None:
            options[name] = with_folder(options[name]) if name == "blend" else [with_folder(b) for b in options[name]]
    config = GPTDatasetConfig(**options | {"tokenizer": Facts(*options["tokenizer"])})
    return dict(zip(("train", "valid", "test"), build_train_valid_test_datasets(config, sizes), strict=True))


def with_folder(blend):
    names, weights = blend
    return [str(asset("golden/data_gpt") / name) for name in names], weights


def check_index(dataset: Dataset, recorded: dict[str, np.ndarray], at: str) -> None:
    """Compare a data set's index arrays, of a blend also those of its parts, with the recorded ones below `at`."""
    if isinstance(dataset, BlendedDataset):
        for number, part in enumerate(dataset.datasets):
            check_index(part, recorded, f"{at}/mid{number}")
        names = ["dataset_index", "dataset_sample_index"]
    else:
        names = ["document_index", "sample_index", "shuffle_index"]
    for name in names:
        np.testing.assert_array_equal(getattr(dataset, name), recorded[f"{at}/{name}"], err_msg=f"{at}/{name}")


def check_samples(dataset: Dataset, recorded: dict[str, np.ndarray], at: str) -> None:
    """Compare the arrays of the recorded samples, and their attention masks, with those recorded below `at`."""
    for name in ("tokens", "labels", "position_ids", "loss_mask"):
        expected = recorded[f"{at}/{name}"]
        actual = np.stack([dataset[i][name] for i in range(len(expected))])
        np.testing.assert_array_equal(actual, expected, err_msg=f"{at}/{name}")
    bits = recorded[f"{at}/attention_mask_bits"]
    one_document = np.zeros(len(dataset[0]["tokens"]), np.int32)
    starts = np.stack([dataset[i].get("document_starts", one_document) for i in range(len(bits))])
    np.testing.assert_array_equal(np.packbits(dense_mask(starts)[:, 0], axis=-1), bits, err_msg=f"{at}/attention_mask")


def test_every_recorded_case_is_in_the_list():
    """`CASES` names each recorded case."""
    assert sorted(CASES) == sorted(recorded_cases())


@pytest.mark.parametrize("case", CASES)
def test_equals_megatron(case):
    """Lengths, classes, indices, weights and samples of each split equal the recorded ones; attention masks follow from
    the starts of documents."""
    recorded = recorded_arrays()
    for split, dataset in build_case(case).items():
        at = f"{case}/{split}"
        result = recorded_cases()[case]["result"][at]
        assert (dataset is None) == (result is None), at
        if dataset is None:
            continue
        assert (len(dataset), type(dataset).__name__) == (result["length"], result["class"]), at
        check_index(dataset, recorded, at)
        check_samples(dataset, recorded, at)
        if isinstance(dataset, BlendedDataset):
            assert dataset.weights == result["weights"]
        else:
            assert isinstance(dataset, GPTDataset) and dataset.num_samples == result["num_samples"]


def build(prefixes, sizes, weights=None, split="90,8,2", s=8, tokenizer=None, **options):
    """(train, valid, test) of a blend of `prefixes` with these numbers of samples."""
    config = GPTDatasetConfig(
        random_seed=1,
        sequence_length=s,
        tokenizer=tokenizer or Facts(100, 99, None),
        blend=(prefixes, weights),
        split=split,
        **options,
    )
    return build_train_valid_test_datasets(config, sizes)


def test_document_starts_only_where_asked_for(tmp_path):
    """Samples have `document_starts` only with --reset-attention-mask."""
    prefix = write_corpus(tmp_path / "d", [50] * 10)
    for wanted in (False, True):
        train, _, _ = build([prefix], [5, 0, 0], reset_attention_mask=wanted)
        assert train is not None and ("document_starts" in train[0]) == wanted


def test_types_and_shapes_of_a_sample(tmp_path):
    """A sample's arrays are int32 [s], the loss mask float32 [s]."""
    train, _, _ = build([write_corpus(tmp_path / "d", [50] * 10)], [5, 0, 0], reset_attention_mask=True)
    assert train is not None
    assert {name: (array.dtype.name, array.shape) for name, array in train[0].items()} == {
        "tokens": ("int32", (8,)),
        "labels": ("int32", (8,)),
        "position_ids": ("int32", (8,)),
        "loss_mask": ("float32", (8,)),
        "document_starts": ("int32", (8,)),
    }


def test_samples_can_be_changed_without_changing_the_next(tmp_path):
    """Changing a sample's tokens does not change what the data set gives next time."""
    train, _, _ = build([write_corpus(tmp_path / "d", [50] * 10)], [5, 0, 0])
    assert train is not None
    before = train[0]["tokens"].copy()
    train[0]["tokens"][:] = 0
    np.testing.assert_array_equal(train[0]["tokens"], before)


def test_what_samples_share_can_not_be_changed(tmp_path):
    """The loss mask and positions, which samples share, are read-only."""
    train, _, _ = build([write_corpus(tmp_path / "d", [50] * 10)], [5, 0, 0])
    assert train is not None
    for name in ("loss_mask", "position_ids"):
        with pytest.raises(ValueError, match="read-only"):
            train[0][name][:] = 0


def test_documents_of_a_sample_are_those_whose_tokens_it_has(tmp_path):
    """`documents_of` names the file, the sequences whose tokens a sample has, in order, and the first token's place,
    for one data set and in a blend."""
    prefixes, lengths = [str(tmp_path / name) for name in "ab"], (5, 21, 3, 8, 1, 16, 9)
    for number, prefix in enumerate(prefixes):
        with IndexedDatasetBuilder(prefix, np.uint16) as builder:
            for sequence, length in enumerate(lengths):
                first = 1000 * number + 100 * sequence
                builder.add_document(np.arange(first, first + length), [length])
            builder.finalize()
    options = {"split": "100,0,0", "tokenizer": Facts(2000, 1999, None)}
    alone, _, _ = build(prefixes[:1], [20, 0, 0], **options)
    blended, _, _ = build(prefixes, [20, 0, 0], [0.5, 0.5], **options)
    for dataset in (alone, blended):
        for i in range(20):
            sample = dataset[i]
            tokens = [*sample["tokens"].tolist(), sample["labels"][-1]]
            begins = [token for before, token in pairwise([-9, *tokens]) if token != before + 1]
            path, sequences = prefixes[tokens[0] // 1000], ", ".join(str(token // 100 % 10) for token in begins)
            first = f"(from token {tokens[0] % 100} of the first)"
            assert dataset.documents_of(i) == f"{path}, sequences {sequences} {first}"


def test_only_prefix_with_a_weight_is_a_blend_except_where_each_split_has_its_own(tmp_path):
    """A single prefix with a weight is built as a blend in --data-path, and as a plain data set where each split has
    its own paths, as in Megatron."""
    blend = ([write_corpus(tmp_path / "d", [50] * 10)], [1.0])
    train, _, _ = build(*blend[:1], [5, 0, 0], weights=blend[1])
    assert isinstance(train, BlendedDataset)
    config = GPTDatasetConfig(
        random_seed=1, sequence_length=8, tokenizer=Facts(100, 99), blend_per_split=[blend, None, None]
    )
    train, valid, _ = build_train_valid_test_datasets(config, [5, 0, 0])
    assert isinstance(train, GPTDataset) and valid is None


def test_split_without_tokens_is_refused_when_samples_are_asked_of_it(tmp_path):
    """A split without tokens is an error if samples are needed of it, else an empty data set."""
    prefix = write_corpus(tmp_path / "d", [50] * 3)
    with pytest.raises(ValueError, match=r"2 samples are needed of the test split of .*d, which has no tokens"):
        build([prefix], [5, 0, 2], split="99,0.5,0.5")
    _, _, test = build([prefix], [5, 0, 0], split="99,0.5,0.5")
    assert test is not None and len(test) == 0


def test_part_of_a_blend_without_a_sample_is_refused(tmp_path):
    """A blend's part that is too short for one sample is an error with its path."""
    prefixes = [write_corpus(tmp_path / "long", [50] * 10), write_corpus(tmp_path / "short", [3])]
    with pytest.raises(ValueError, match=r"the train split of .*short has no sample"):
        build(prefixes, [5, 0, 0], split="1")


def test_weights_must_be_positive(tmp_path):
    """A blend with a weight of 0 is refused."""
    prefix = write_corpus(tmp_path / "d", [50] * 10)
    with pytest.raises(ValueError, match="weights must be positive"):
        build([prefix, prefix], [5, 0, 0], weights=[0.0, 1.0])


def test_weighted_blend_needs_a_size(tmp_path):
    """A weighted blend without a number of samples is an error."""
    prefix = write_corpus(tmp_path / "d", [50] * 10)
    with pytest.raises(ValueError, match="the number of samples must be given"):
        build([prefix, prefix], [None, None, None], weights=[1.0, 1.0])


def test_data_of_another_tokenizer_are_refused(tmp_path):
    """A token id beyond the vocabulary is an error."""
    prefix = write_corpus(tmp_path / "d", [50] * 10, vocab_size=100)
    with pytest.raises(ValueError, match="has token id 99, but the vocabulary has 64 entries"):
        build([prefix], [5, 0, 0], tokenizer=Facts(64, 63, None))


def test_cache_changes_nothing(tmp_path):
    """A blend's samples are the same without --data-cache-path, when the cache is built and when it is read."""
    prefixes = [write_corpus(tmp_path / name, [50] * 10, seed=seed) for seed, name in enumerate("ab")]
    plain = build(prefixes, [20, 5, 0], weights=[1.0, 2.0])
    for _ in ("build", "load"):
        kept = build(prefixes, [20, 5, 0], weights=[1.0, 2.0], path_to_cache=tmp_path / "cache")
        for expected, actual in zip(plain[:2], kept[:2], strict=True):
            assert expected is not None and actual is not None
            for i in range(len(expected)):
                np.testing.assert_array_equal(actual[i]["tokens"], expected[i]["tokens"])


@pytest.mark.parametrize("vocab_size", [50, 8192])
def test_mock_data_stay_in_the_vocabulary(vocab_size):
    """Mock data have ids of the vocabulary, and mostly count up, which a model can learn."""
    config = GPTDatasetConfig(
        random_seed=1, sequence_length=512, tokenizer=Facts(vocab_size + 1, vocab_size), mock=True, split="99,1,0"
    )
    train, valid, test = build_train_valid_test_datasets(config, [20, 4, 0])
    assert train is not None and valid is not None and test is None
    tokens = np.stack([train[i]["tokens"] for i in range(20)])
    assert tokens.min() >= 0 and tokens.max() <= vocab_size
    follows = train[0]["tokens"][1:] - train[0]["tokens"][:-1]
    assert np.count_nonzero(follows == 1) > 400, "numbers that count up can be learnt"


def test_ranks_that_need_no_data_open_no_file():
    """A rank that needs no data gets None for each split and opens no file."""
    config = GPTDatasetConfig(
        random_seed=1, sequence_length=8, tokenizer=Facts(10, 9), blend=(["nowhere"], None), split="1"
    )
    assert BlendedMegatronDatasetBuilder(GPTDataset, [1, 1, 1], lambda: False, config).build() == [None] * 3
