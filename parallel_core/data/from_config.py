"""The way from the configuration to the tokenizer and to the description of a GPT's training data."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from parallel_core.config import AllConfig
from parallel_core.config.notations import parse_blend
from parallel_core.data.blended import cut
from parallel_core.data.dataset_config import GPTDatasetConfig, parse_split
from parallel_core.data.indexed_dataset import IndexedDataset
from parallel_core.data.tokenizers import (
    Facts,
    MegatronTokenizer,
    TokenizerOptions,
    build_tokenizer,
    facts,
    training_vocab_size,
)

DEFAULT_SPLIT = "969,30,1"
MOCK_TOKENIZER = "NullTokenizer"


def tokenizer_options(config: AllConfig) -> TokenizerOptions:
    """The options of the tokenizer that the flags describe; without --tokenizer-type those of a NullTokenizer for the
    model's vocabulary."""
    data, settings, model = config.dataset_config, config.dataset_config.tokenizer, config.model_config
    vocab_size = model.unpadded_vocab_size or model.vocab_size
    kind = data.tokenizer_type or MOCK_TOKENIZER
    # NullTokenizer adds one id, the end of a document, to --vocab-size.
    adds = kind == MOCK_TOKENIZER and settings.null_tokenizer_eod_id is None
    return TokenizerOptions.of(
        settings,
        tokenizer_type=kind,
        tokenizer_model=data.tokenizer_model,
        vocab_file=data.vocab_file,
        merge_file=data.merge_file,
        vocab_size=vocab_size - adds,
        tokenizer_kwargs=data.tokenizer_kwargs,
    )


def tokenizer_facts(config: AllConfig) -> Facts:
    """The special ids of the tokenizer, `eod` and `pad` those of --eos-token-id and --pad-token-id where given, and as
    `vocab_size` the number of ids that it needs room for (`training_vocab_size`). Raises ValueError where the model's
    vocabulary is too small, and as `facts`."""
    options = tokenizer_options(config)
    return _fitting(config, replace(facts(options), vocab_size=training_vocab_size(options)))


def tokenizer_of(config: AllConfig) -> MegatronTokenizer:
    """The tokenizer that the flags describe, to encode and decode with; its `eod` and `pad` are those of --eos-token-id
    and --pad-token-id where given. Raises ValueError where the model's vocabulary is too small, and as
    `build_tokenizer`."""
    tokenizer = build_tokenizer(tokenizer_options(config))
    tokenizer.facts = _fitting(config, tokenizer.facts)
    return tokenizer


def _fitting(config: AllConfig, found: Facts) -> Facts:
    """The facts with the ids of --eos-token-id and --pad-token-id. Raises ValueError where the model's vocabulary is
    too small."""
    data, model = config.dataset_config, config.model_config
    if found.vocab_size > model.vocab_size:
        raise ValueError(
            f"--tokenizer-type {data.tokenizer_type} has {found.vocab_size} entries, the model's vocabulary "
            f"{model.vocab_size}: raise --vocab-size to at least {found.vocab_size}, or leave it out"
        )
    eod = found.eod if data.eos_token_id is None else data.eos_token_id
    pad = found.pad if data.pad_token_id is None else data.pad_token_id
    return replace(found, eod=eod, pad=pad)


def _blends(config: AllConfig) -> dict[str, Any]:
    data = config.dataset_config
    per_split = (data.train_data_path, data.valid_data_path, data.test_data_path)
    if any(per_split):
        return {"blend_per_split": [parse_blend(paths) if paths else None for paths in per_split], "split": data.split}
    blend = parse_blend(data.data_path) if data.data_path else None
    return {"blend": blend, "split": data.split or DEFAULT_SPLIT}


def stored_length(config: AllConfig) -> int:
    """The number of a file's tokens that make a sample: the sequence length, twice that where as many labels lie behind
    the tokens (--train-mode finetune)."""
    return config.model_config.seq_length * (2 if config.dataset_config.instruction.labels_in_data else 1)


def samples_per_epoch(config: AllConfig) -> int | None:
    """The number of samples in one pass over the training data; None for several files with weights, which have no
    passes, where training has no share of the data, and where no files are named (as with mock data).

    Raises ValueError for files that are missing or damaged, and for flags that cannot be read as a blend or a split.
    """
    blends = _blends(config)
    blend = blends["blend_per_split"][0] if "blend_per_split" in blends else blends["blend"]
    interval = (0.0, 1.0) if "blend_per_split" in blends else parse_split(blends["split"])[0]
    if blend is None or interval is None or (blend[1] is not None and len(blend[0]) > 1):
        return None
    lengths = (IndexedDataset(prefix).sequence_lengths for prefix in blend[0])
    tokens = (int(part[cut(len(part), interval)].sum(dtype=np.int64)) for part in lengths)
    return sum(max(number - 1, 0) // stored_length(config) for number in tokens)


def gpt_dataset_config(config: AllConfig, tokenizer: Facts | None = None) -> GPTDatasetConfig:
    """The description of the data that the flags give. tokenizer: facts in place of those of the flags' tokenizer.
    Raises ValueError as `parse_blend` and `GPTDatasetConfig`, and without `tokenizer` as `tokenizer_facts`."""
    data = config.dataset_config
    return GPTDatasetConfig(
        random_seed=config.training_config.seed,
        sequence_length=config.model_config.seq_length,
        tokenizer=tokenizer or tokenizer_facts(config),
        mock=data.mock_data,
        path_to_cache=Path(data.data_cache_path) if data.data_cache_path else None,
        mmap_bin_files=data.mmap_bin_files,
        reset_position_ids=data.reset_position_ids,
        reset_attention_mask=data.reset_attention_mask and data.create_attention_mask_in_dataloader,
        eod_mask_loss=data.eod_mask_loss,
        **_blends(config),
    )
