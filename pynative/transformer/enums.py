"""Megatron's enums. A user's own copies of them are compared by name."""

import enum


class AttnMaskType(enum.Enum):
    """Which scores an attention leaves out."""

    padding = 1
    causal = 2
    no_mask = 3
    padding_causal = 4


class AttnType(enum.Enum):
    """What attends to what."""

    self_attn = 1
    cross_attn = 2


class LayerType(enum.Enum):
    """Of which half of a model a layer is."""

    encoder = 1
    decoder = 2


class ModelType(enum.Enum):
    """What kind of model is trained."""

    encoder_or_decoder = 1


def is_causal(mask_type: enum.Enum) -> bool:
    """Whether a mask type, ours or a user's of the same names, hides later positions."""
    if mask_type.name not in AttnMaskType.__members__:
        raise ValueError(f"attention mask type {mask_type.name!r}: one of {', '.join(AttnMaskType.__members__)}")
    return mask_type.name in ("causal", "padding_causal")
