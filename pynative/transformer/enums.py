"""Megatron's enums. Where one is read, a user's own copy is as good: members are compared by name."""

import enum


class AttnMaskType(enum.Enum):
    """The scores that an attention leaves out: those of padding, those of later positions (causal), both, or none. Here
    padding is left out by a given mask alone."""

    padding = 1
    causal = 2
    no_mask = 3
    padding_causal = 4


class AttnType(enum.Enum):
    """The kind of attention: queries and keys from one sequence, or from two."""

    self_attn = 1
    cross_attn = 2


class LayerType(enum.Enum):
    """The half of a model that a layer belongs to, encoder or decoder."""

    encoder = 1
    decoder = 2


class ModelType(enum.Enum):
    """The kind of model that is trained."""

    encoder_or_decoder = 1


def is_causal(mask_type: enum.Enum) -> bool:
    """Whether a mask type, ours or a user's of the same names, hides later positions. Raises ValueError for another
    name."""
    if mask_type.name not in AttnMaskType.__members__:
        raise ValueError(f"attention mask type {mask_type.name!r}: one of {', '.join(AttnMaskType.__members__)}")
    return mask_type.name in ("causal", "padding_causal")
