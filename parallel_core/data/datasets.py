"""The data sets of a run, of the kind that its flags ask for."""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, cast

from parallel_core.config import AllConfig
from parallel_core.data import from_config
from parallel_core.data.blended import BlendedMegatronDatasetBuilder, build_train_valid_test_datasets
from parallel_core.data.instruction.from_config import conversations_per_epoch, instruction_datasets
from parallel_core.data.instruction.labelled import LabelledDataset
from parallel_core.data.instruction.raw import raw_datasets
from parallel_core.data.instruction.sft import PROMPT_FORMATS, SFTDataset, SFTDatasetConfig

Provider = Callable[[Sequence[int | None]], Sequence[Any]]
"""Numbers of samples of train, valid and test -> their data sets; None for a split that has no share."""


def datasets_provider(config: AllConfig) -> Provider:
    """The provider that `pretrain` asks for data: a function from the numbers of samples of train, valid and test to
    their data sets, None for a split without a share. Mistakes in flags and files raise ValueError here or when the
    provider is called."""
    if config.dataset_config.instruction.enabled:
        return instruction_datasets(config)
    if config.dataset_config.instruction.sft:
        return _messages(config)
    if config.dataset_config.instruction.raw:
        return raw_datasets(config)
    if config.dataset_config.instruction.labels_in_data:
        return _labelled(config)
    described = from_config.gpt_dataset_config(config)
    return lambda sizes: build_train_valid_test_datasets(described, sizes)


def check_data(config: AllConfig) -> None:
    """Raise ValueError for the first mistake in the tokenizer's flags and files (`tokenizer_facts`) or, without
    --dataset, in what else `gpt_dataset_config` refuses; no data are opened."""
    is_raw = config.dataset_config.instruction.raw is not None
    (from_config.tokenizer_facts if is_raw else from_config.gpt_dataset_config)(config)


def samples_per_epoch(config: AllConfig) -> int | None:
    """The number of samples in one pass over the training data, None where it is not known or training has no share of
    the data: with --is-instruction-dataset that of `conversations_per_epoch`, with --sft or --dataset None, else that
    of `from_config.samples_per_epoch`. Raises ValueError as these."""
    if config.dataset_config.instruction.enabled:
        return conversations_per_epoch(config)
    is_text = config.dataset_config.instruction.sft or config.dataset_config.instruction.raw
    return None if is_text else from_config.samples_per_epoch(config)


def _messages(config: AllConfig) -> Provider:
    """The provider for files of messages (--sft), which are opened here once, so that mistakes in them are found before
    training."""
    data = config.dataset_config
    if data.tokenizer_type != "SFTTokenizer":
        raise ValueError(f"--sft: needs --tokenizer-type SFTTokenizer to write messages, not {data.tokenizer_type}")
    if data.mock_data:
        raise ValueError("--sft: needs --data-path, a file of messages; leave out --mock-data")
    tokenizer = from_config.tokenizer_of(config)
    plain = replace(from_config.gpt_dataset_config(config, tokenizer.facts), tokenizer=tokenizer)
    described = SFTDatasetConfig(
        **{field.name: getattr(plain, field.name) for field in fields(plain)},
        form=PROMPT_FORMATS[data.tokenizer.sft_tokenizer_prompt_format],
        context_parallel_size=config.parallel_config.context_parallel_size,
    )
    # Any class with the methods of a GPTDataset can be blended.
    builder = BlendedMegatronDatasetBuilder(cast(Any, SFTDataset), (None, None, None), lambda: True, described)
    for blend in described.blend_per_split or [described.blend]:
        for path in blend[0] if blend else ():
            builder.open(path)

    def build(sizes: Sequence[int | None]) -> Sequence[Any]:
        builder.sizes = list(sizes)
        return builder.build()

    return build


def _labelled(config: AllConfig) -> Provider:
    facts = replace(from_config.tokenizer_facts(config), pad=None)
    described = from_config.gpt_dataset_config(config, facts)
    length = described.sequence_length
    plain = replace(
        described,
        sequence_length=from_config.stored_length(config),
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
    )
    keeps_apart = config.dataset_config.reset_position_ids

    def build(sizes: Sequence[int | None]) -> Sequence[Any]:
        whole = build_train_valid_test_datasets(plain, sizes)
        return [None if data is None else LabelledDataset(data, length, keeps_apart) for data in whole]

    return build
