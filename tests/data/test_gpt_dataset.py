"""Samples and indices against those that Megatron-Core recorded, and what happens at the edges."""

import json
from functools import cache

import numpy as np
import pytest

from parallel_core.data.blended import BlendedDataset, Dataset, build_train_valid_test_datasets
from parallel_core.data.dataset_config import GPTDatasetConfig
from parallel_core.data.gpt_dataset import GPTDataset
from tests.data.corpus import FixedTokenizer
from tests.golden import golden

CASES = [
    "one_epoch", "size_none", "multi_epoch_separate_last", "multi_epoch_joint", "seed_4321_seq_57", "corpus_b_int32",
    "eod_mask_loss", "reset_position_ids", "reset_attention_mask", "reset_all", "pad_token_in_data",
    "keep_partial_valid", "no_extra_token", "split_100_0_0", "blend_30_70", "blend_30_70_seed_99",
    "blend_unweighted_sized", "blend_unweighted_none", "blend_per_split",
]  # fmt: skip


@cache
def recorded_cases() -> dict:
    return json.loads((golden("data_gpt") / "cases.json").read_text())["cases"]


@cache
def recorded_arrays() -> dict[str, np.ndarray]:
    return dict(np.load(golden("data_gpt") / "samples.npz"))


def build_case(case: str, **changes) -> dict[str, Dataset | None]:
    options = recorded_cases()[case]["config"] | changes
    sizes = options.pop("sizes")
    for name in ("blend", "blend_per_split"):
        if options.get(name) is not None:
            options[name] = with_folder(options[name]) if name == "blend" else [with_folder(b) for b in options[name]]
    config = GPTDatasetConfig(
        **options | {"tokenizer": FixedTokenizer(*options["tokenizer"]), "create_attention_mask": True}
    )
    return dict(zip(("train", "valid", "test"), build_train_valid_test_datasets(config, sizes), strict=True))


def with_folder(blend):
    names, weights = blend
    return [str(golden("data_gpt") / name) for name in names], weights


def check_index(dataset: Dataset, recorded: dict[str, np.ndarray], at: str) -> None:
    if isinstance(dataset, BlendedDataset):
        for number, part in enumerate(dataset.datasets):
            check_index(part, recorded, f"{at}/mid{number}")
        names = ["dataset_index", "dataset_sample_index"]
    else:
        names = ["document_index", "sample_index", "shuffle_index"]
    for name in names:
        np.testing.assert_array_equal(getattr(dataset, name), recorded[f"{at}/{name}"], err_msg=f"{at}/{name}")


def check_samples(dataset: Dataset, recorded: dict[str, np.ndarray], at: str) -> None:
    for name in ("tokens", "labels", "position_ids", "loss_mask"):
        expected = recorded[f"{at}/{name}"]
        actual = np.stack([dataset[i][name] for i in range(len(expected))])
        np.testing.assert_array_equal(actual, expected, err_msg=f"{at}/{name}")
    bits = recorded[f"{at}/attention_mask_bits"]
    masks = np.stack([dataset[i]["attention_mask"][0] for i in range(len(bits))])
    np.testing.assert_array_equal(np.packbits(masks, axis=-1), bits, err_msg=f"{at}/attention_mask")


def test_every_recorded_case_is_in_the_list():
    assert sorted(CASES) == sorted(recorded_cases())


@pytest.mark.parametrize("case", CASES)
def test_equals_megatron(case):
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
