"""Where checkpoints lie in the directory that --save names."""

from pathlib import Path

from parallel_core.checkpoint import commit


def get_checkpoint_name(ckpt_path: str | Path, iteration: int) -> Path:
    """The directory of an iteration's checkpoint."""
    return Path(ckpt_path) / commit.checkpoint_name(iteration)


def get_last_checkpoint(ckpt_path: str | Path) -> Path:
    """The latest checkpoint's directory; ValueError if there is none."""
    return commit.find(Path(ckpt_path))
