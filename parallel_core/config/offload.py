"""What lies elsewhere than in the memory of the device that computes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from parallel_core.config.base import Config, option
from parallel_core.findings import Finding


@dataclass(kw_only=True)
class OffloadConfig(Config):
    """Optimizer states in host memory, or in a file ("ZeRO-Offload", 2021; "ZeRO-Infinity", 2021)."""

    cpu_offload_optimizer: bool = option("--cpu-offload-optimizer", False)
    """Keep optimizer states in host memory, and update there."""
    optimizer_offload_fraction: float = option("--optimizer-offload-fraction", 1.0, at_least=0, at_most=1)
    """Share of the optimizer states that is kept in host memory, or in the file."""
    nvme_path: str | None = option("--nvme-path", None)
    """Directory of files in which optimizer states are kept, and mapped into host memory where they are updated."""

    @property
    def offloads_optimizer(self) -> bool:
        """Whether optimizer states lie elsewhere than on the device."""
        return (self.cpu_offload_optimizer or self.nvme_path is not None) and self.optimizer_offload_fraction > 0

    def rules(self) -> Iterator[Finding]:
        if self.cpu_offload_optimizer and self.nvme_path is not None:
            rule = "--cpu-offload-optimizer keeps the same states in host memory"
            yield Finding("--nvme-path", self.nvme_path, rule, "leave one of them out")
        if self.optimizer_offload_fraction < 1 and not (self.cpu_offload_optimizer or self.nvme_path is not None):
            rule = "needs --cpu-offload-optimizer (--optimizer-cpu-offload) or --nvme-path"
            yield Finding("--optimizer-offload-fraction", self.optimizer_offload_fraction, rule, "add one of them")
