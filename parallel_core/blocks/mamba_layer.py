"""A layer of a hybrid stack that is a state space alone."""

from dataclasses import dataclass
from typing import ClassVar

from parallel_core.blocks.layer import Branch, BranchedLayer
from parallel_core.blocks.mamba import MambaMixer
from parallel_core.blocks.norm import Norm
from parallel_core.config import ModelConfig


@dataclass(frozen=True)
class MambaLayer(BranchedLayer):
    """A layer that is a state space alone: mixer(norm(x)), times --scale-depth, is added to x or, with
    --apply-residual-connection-post-layernorm, to norm(x)."""

    norm: Norm
    mixer: MambaMixer

    BRANCHES: ClassVar[tuple[Branch, ...]] = (Branch("norm", "mixer", "post_mixer_layernorm", 1, True),)

    @classmethod
    def of(cls, config: ModelConfig, number: int) -> "MambaLayer":
        """The configuration's layer with this global number, from 0."""
        return cls(Norm.of(config), MambaMixer.of(config, number))
