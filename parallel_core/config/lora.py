"""Options of low-rank adapters (Hu et al., 2021)."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from parallel_core.config.base import Config, option
from parallel_core.findings import Finding
from parallel_core.sharding import ShardSpec

_KEYS: dict[str, Any] = {"cell": str, "rank": int, "alpha": (int, float)}


@dataclass(kw_only=True)
class LoraConfig(Config):
    """Options of low-rank adapters: their rank, scale and places. With rank 0 there are none."""

    lora_rank: int = option("--lora-r", 0, at_least=0)
    """Rank of an adapter; 0: there are no adapters."""
    lora_alpha: float = option("--lora-alpha", 32.0, above=0)
    """Scale of an adapter: its output is multiplied by alpha over the rank."""
    lora_dropout: float = option("--lora-dropout", 0.0, at_least=0, below=1)
    """Dropout on an adapter's input."""
    target_modules: list[str] | None = option("--lora-target-modules", None)
    """Names of the linears that get an adapter: the end of a path in the model, or a regular expression for it."""
    cells: list[dict[str, Any]] | None = option("--lora-target-cells", None)
    """Rank and scale of the adapters at some of the linears that `target_modules` names: {cell: name as there, rank,
    alpha}; the first that fits counts."""
    qlora: bool = option("--qlora", False)
    """Round the weights of column- and row-parallel linears and of experts to NF4 (QLoRA, Dettmers et al., 2023) before
    the first step; they are kept, and saved, in their own type all the same."""
    lora_load: str | None = option("--lora-load", None)
    """Checkpoint from which a run that begins takes its adapters; none: from --load, or new ones where that has
    none."""

    def rules(self) -> Iterator[Finding]:
        if self.use_lora and not self.target_modules:
            fix = "give --lora-target-modules, such as linear_qkv linear_proj linear_fc1 linear_fc2"
            yield Finding("--lora-r", self.lora_rank, "needs the names of the linears that get an adapter", fix)
        for pattern in (*(self.target_modules or ()), *(str(cell.get("cell")) for cell in self.cells or ())):
            try:
                names(pattern, "")
            except (re.error, OverflowError) as error:
                yield Finding("--lora-target-modules", pattern, f"is no regular expression ({error})", "change it")
        for cell in self.cells or ():
            known = all(name in _KEYS and isinstance(value, _KEYS[name]) for name, value in cell.items())
            sizes = [cell.get("rank", 1), cell.get("alpha", 1)]
            if not known or "cell" not in cell or not all(size > 0 for size in sizes):
                rule = "must have the keys cell, rank and alpha, a name and two numbers above 0"
                yield Finding("--lora-target-cells", cell, rule, "change it")

    @property
    def use_lora(self) -> bool:
        """Whether there are adapters."""
        return self.lora_rank > 0

    def trains(self, spec: ShardSpec) -> bool:
        """Whether the options let a parameter be trained: with adapters only theirs, else each."""
        return not self.use_lora or spec.role == "adapter"

    def adapter_of(self, path: str) -> tuple[int, float] | None:
        """Rank and alpha of the adapter of the linear at a path in the model; None: the linear has no adapter."""
        if not self.use_lora or not any(names(pattern, path) for pattern in self.target_modules or ()):
            return None
        own = next((cell for cell in self.cells or () if names(cell["cell"], path)), {})
        return own.get("rank", self.lora_rank), own.get("alpha", self.lora_alpha)


def names(pattern: str, path: str) -> bool:
    """Whether a pattern of --lora-target-modules matches a whole path in the model, or its end behind a dot. Raises
    re.error or OverflowError for a pattern that is no regular expression."""
    compiled = _compiled(pattern)
    starts = (0, *(place + 1 for place, letter in enumerate(path) if letter == "."))
    return any(compiled.fullmatch(path, start) for start in starts)


_compiled = lru_cache(re.compile)
