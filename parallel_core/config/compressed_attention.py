"""Options of attention over a window and over entries that stand for many tokens each."""

from dataclasses import dataclass

from parallel_core.config.base import Config, option

INDEXED_RATIO = 4
"""The number of tokens that an entry stands for in layers whose windows overlap, and whose entries an indexer chooses
among."""


@dataclass(kw_only=True)
class CompressedAttentionConfig(Config):
    """Options of attention to the latest tokens and to entries that stand for windows of earlier ones, in which a key
    is its own value (DeepSeek-V4, 2026)."""

    ratios: list[int] | None = option("--compress-ratios", None)
    """For each layer the number of tokens that a compressed entry stands for; 0 or 1: it has no entries. With 4 the
    windows of entries overlap, and an indexer chooses among them. Layers behind the list have no entries."""
    window: int = option("--sliding-window-size", 128, at_least=1)
    """Latest tokens that a query sees in every layer, its own among them."""
    output_groups: int = option("--o-groups", 8, at_least=1)
    """Number of parts of the heads' output, each of which is projected by itself."""
    output_rank: int = option("--o-lora-rank", 1024, at_least=1, of="shapes")
    """Width that each part of the heads' output is projected to."""
    entry_rotary_base: float = option("--compress-rope-theta", 40000.0, above=0)
    """Rotary base of layers that have entries; the others have --rotary-base."""
    entry_rotary_factor: float = option("--rope-factor", 4.0, above=0)
    """Factor by which positions of layers with entries are stretched, as YaRN does; cosines and sines are not
    scaled."""
    original_length: int = option("--original-seq-len", 65536, at_least=1)
    """The length, in tokens, that layers with entries were first trained on."""

    @property
    def enabled(self) -> bool:
        """Whether the model has compressed attention (--compress-ratios)."""
        return self.ratios is not None

    def ratio(self, layer: int) -> int:
        """The number of tokens that an entry stands for in the layer of this global number, from 0; 0: the layer has no
        entries."""
        ratio = self.ratios[layer] if self.ratios and layer < len(self.ratios) else 0
        return ratio if ratio > 1 else 0

    def has_indexer(self, layer: int) -> bool:
        """Whether an indexer chooses among the entries of the layer of this global number, from 0."""
        return self.ratio(layer) == INDEXED_RATIO
