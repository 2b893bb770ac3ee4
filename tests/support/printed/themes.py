"""With what a planned item comes: the theme of the work that implements it."""

from __future__ import annotations

import re

THEMES = {
    "experts": r"expert|moe|droprate|token_distribution|mtp",
    "memory": r"recomput|distributed_optimizer|zero|offload|overlap|delay_grad|bucket|mem_align|with_ddp",
    "16-bit types": r"dtype|bf16|fp16|fp32|loss.?scal|scale_sense|residual|masked_softmax_fusion|transformer_impl",
    "checkpoints": r"training_config\.prefix|callbacks?\b",
    "attention windows": r"next_tokens|pre_tokens",
    "data": r"epochs",
    "LoRA": r"lora",
}
"""Theme -> what the item or the field has in its name; the first that fits counts."""


def theme_of(words: str) -> str:
    """The theme that an item and its field belong to; empty if there is none."""
    return next((theme for theme, pattern in THEMES.items() if re.search(pattern, words, re.IGNORECASE)), "")
