"""The configuration of a checkpoint's model, for a process that only uses the model."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_origin, get_type_hints

from parallel_core.config import AllConfig, DatasetConfig, LoraConfig, ModelConfig, MoEConfig, ParallelConfig
from parallel_core.config.base import Config

TOKENIZER_FIELDS = ("tokenizer_type", "vocab_file", "merge_file", "tokenizer_model", "pad_token_id", "eos_token_id")


def config_for_inference(sections: Mapping[str, Mapping[str, Any]], parallel: ParallelConfig) -> AllConfig:
    """Model and tokenizer as they were saved, on whatever processes `parallel` says; nothing of the training.

    Raises ValueError for a field that this version does not know, or whose value it does not take.
    """
    tokenizer: dict[str, Any] = {name: sections["dataset_config"].get(name) for name in TOKENIZER_FIELDS}
    return AllConfig(
        model_config=_section(ModelConfig, sections["model_config"]),
        moe_config=_section(MoEConfig, sections.get("moe_config", {})),
        lora_config=_section(LoraConfig, sections.get("lora_config", {})),
        dataset_config=DatasetConfig(**tokenizer),
        parallel_config=parallel,
    )


def _section(cls: type, values: Mapping[str, Any]) -> Any:
    """A section from its JSON form, in which tuples are lists and sections inside it are objects.

    What it shows of a sibling is that section's, and about training.
    """
    hints = get_type_hints(cls)
    shown = {name for entry in fields(cls) for name in entry.metadata.get("shows", ())}
    concerns = [entry.metadata["concern"] for entry in fields(cls) if "concern" in entry.metadata]
    known = {entry.name for part in (cls, *concerns) for entry in fields(part)}
    unknown = values.keys() - known - shown
    if unknown:
        raise ValueError(
            f"{cls.__name__}: the checkpoint sets {', '.join(sorted(unknown))}, which this version does not know; load "
            f"it by the version that saved it"
        )
    return cls(**{name: _value(hints.get(name), value) for name, value in values.items() if name not in shown})


def _value(hint: Any, value: Any) -> Any:
    if isinstance(value, dict) and isinstance(hint, type) and issubclass(hint, Config):
        return _section(hint, value)
    return tuple(value) if get_origin(hint) is tuple and isinstance(value, list) else value
