"""Checksums that the files of a checkpoint come with: ours has one for each tensor, torch.save writes zip archives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from parallel_core.checkpoint.convert.megatron import torch_dist
from parallel_core.checkpoint.convert.native import is_native
from parallel_core.checkpoint.reader import CheckpointReader
from parallel_core.checkpoint.torch_files import distributed
from parallel_core.checkpoint.torch_files.archive import damaged_entry


def damages(folder: Path, share: int = 0, shares: int = 1) -> Iterator[str]:
    """What is not as it was written, of the files that are read of a checkpoint; safetensors of other tools have no
    checksums. Ranks can divide the files: this is share number `share` of `shares`."""
    if is_native(folder):
        yield from CheckpointReader(folder).damaged_files(share, shares)
    for path, offset, length in [*_archives(folder)][share::shares]:
        entry = damaged_entry(path, offset, length)
        if entry is not None:
            yield f"{path}: {entry} (at byte {offset}) is not what was written; restore it or take another checkpoint"


def unverified(folder: Path) -> list[str]:
    """Names of the files that have no checksums: of a checkpoint of ours made by hand, and of HuggingFace's."""
    if is_native(folder):
        return CheckpointReader(folder).unverified_files
    return sorted(path.name for path in folder.glob("*.safetensors"))


def _archives(folder: Path) -> Iterator[tuple[Path, int, int]]:
    """File, offset and length of what torch.save wrote; HuggingFace's are not read where there are safetensors, too."""
    if torch_dist.is_torch_dist(folder):
        yield from distributed.archives(folder)
    whole = [*folder.glob(torch_dist.COMMON), *folder.glob("mp_rank_*/*.pt")]
    if not any(folder.glob("*.safetensors")):
        whole += folder.glob("pytorch_model*.bin")
    yield from ((path, 0, path.stat().st_size) for path in sorted(whole))
