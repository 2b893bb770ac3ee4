"""Norms: LayerNorm (Ba et al., 2016) and RMSNorm (Zhang and Sennrich, 2019)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from parallel_core.blocks.block import Block, ParameterSpec
from parallel_core.blocks.micro_batch import FLOAT32, MicroBatch, between_regions
from parallel_core.config import ModelConfig
from parallel_core.initial_values import Constant
from parallel_core.messages import Message
from parallel_core.operations import NORM, Operation, elementwise
from parallel_core.sharding import Cut, Role, ShardSpec, share


@dataclass(frozen=True)
class Norm(Block):
    """A norm over the last axis: of vectors that are not cut over tensor-parallel ranks, such as hidden states or
    latents, or, with `heads`, of each head inside a tensor-parallel region. gain: the factor of the normed values at
    first; zero_centered: whether the weight is stored minus one; of_branch: whether the input has the type of
    activations, not the residual stream's; partial_over, role: as in `ShardSpec`; epsilon None or 0: --norm-epsilon."""

    kind: str
    """Kind of norm: LayerNorm, RMSNorm or FusedRMSNorm."""
    size: int
    dtype: str
    gain: float = 1.0
    """The factor of the normed values at first."""
    zero_centered: bool = False
    """Whether the weight is stored minus one (--apply-layernorm-1p)."""
    partial_over: str | None = None
    """Kind of the group whose ranks norm different heads or shards of the sequence (see ShardSpec); None: there is
    none."""
    heads: int | None = None
    """The number of heads, over all ranks, that are normed each by itself; None: no heads are."""
    of_branch: bool = False
    """Whether its input has the type of activations, as a sublayer's output or a latent, rather than the residual
    stream's. Not read with `heads`, which have the type of activations."""
    role: Role | None = None
    epsilon: float | None = None
    """The epsilon; None or 0: --norm-epsilon."""

    @classmethod
    def of(cls, config: ModelConfig) -> "Norm":
        """A norm of the configuration's residual stream."""
        partial_over, one_p = between_regions(config), config.apply_layernorm_1p
        return cls(config.normalization, config.hidden_size, config.params_dtype, 1.0, one_p, partial_over)

    @classmethod
    def of_branch_output(cls, config: ModelConfig, gain: float) -> "Norm":
        """A norm of hidden states in the type of activations, such as a sublayer's output (sandwich norm). gain: the
        factor of the normed values before training."""
        return replace(cls.of(config), gain=gain, of_branch=True)

    @classmethod
    def of_heads(cls, config: ModelConfig, heads: int) -> "Norm":
        """The configuration's norm of each of `heads` heads, counted over all ranks, of `kv_channels` channels
        each."""
        one_p = config.apply_layernorm_1p
        size, dtype = config.kv_channels, config.params_dtype
        return cls(config.normalization, size, dtype, 1.0, one_p, "tp", heads, role="head norm")

    @classmethod
    def of_latent(cls, config: ModelConfig, size: int) -> "Norm":
        """The configuration's norm of a latent of `size` channels, with --latent-norm-epsilon if that is given."""
        epsilon = config.multi_latent_attention.latent_norm_epsilon
        return replace(cls.of(config), size=size, of_branch=True, epsilon=epsilon)

    @property
    def centred(self) -> bool:
        """Whether the mean is subtracted and a bias added, as LayerNorm does."""
        return self.kind == "LayerNorm"

    def parameters(self) -> dict[str, ParameterSpec]:
        shard = ShardSpec(shape=(self.size,), partial_over=self.partial_over, role=self.role)
        weight = ParameterSpec(shard, Constant(self.gain - 1.0 if self.zero_centered else self.gain), self.dtype)
        bias = ParameterSpec(shard, Constant(0.0), self.dtype)
        return {"weight": weight, "bias": bias} if self.centred else {"weight": weight}

    def _rows(self, micro_batch: MicroBatch) -> int:
        """The number of rows that a rank norms: tokens, or heads of tokens."""
        if self.heads is None:
            return micro_batch.tokens_between
        return micro_batch.tokens * share(self.heads, micro_batch.tensor)

    def operations(self, micro_batch: MicroBatch) -> Iterator[Operation]:
        """One pass that reads its input and writes its output; the backward reads the input and the output's gradient,
        and writes the input's gradient."""
        size = self._rows(micro_batch) * self.size * micro_batch.item_size
        yield elementwise(2 * size, 3 * size, named=NORM)

    def kept_bytes(self, micro_batch: MicroBatch) -> dict[str, int]:
        """Bytes kept for the backward, under "": of the input, and of one float32 statistic for each row, with
        LayerNorm of two."""
        of_residual = self.heads is None and not self.of_branch
        item_size = micro_batch.residual_item_size if of_residual else micro_batch.item_size
        statistics = (1 + self.centred) * FLOAT32
        return {"": self._rows(micro_batch) * (self.size * item_size + statistics)}


@dataclass(frozen=True)
class NormOfAllHeads(Norm):
    """RMSNorm over all heads of a token together (OLMo 2, 2025), which tensor-parallel ranks share: each has 1/t of
    `size` features, and the mean of squares is over those of all ranks."""

    def parameters(self) -> dict[str, ParameterSpec]:
        specs = super().parameters()
        shard = ShardSpec(shape=(self.size,), cuts=(Cut(0),), role=self.role)
        return {name: spec._replace(shard=shard) for name, spec in specs.items()}

    def operations(self, micro_batch: MicroBatch) -> Iterator[Operation]:
        size = micro_batch.tokens * (self.size // micro_batch.tensor) * micro_batch.item_size
        yield elementwise(2 * size, 3 * size, named=NORM)

    def messages(self, micro_batch: MicroBatch) -> Iterator[Message]:
        """Messages that sum one number for each token over the tensor-parallel ranks, forward and backward."""
        for backward in (False, True):
            yield from micro_batch.tensor_message("all_reduce", micro_batch.tokens * FLOAT32, backward)

    def kept_bytes(self, micro_batch: MicroBatch) -> dict[str, int]:
        return {"": micro_batch.tokens * (self.size // micro_batch.tensor * micro_batch.item_size + FLOAT32)}


def head_norm(config: ModelConfig, heads: int) -> Norm:
    """The configuration's norm of queries or of keys (--qk-layernorm), which have `heads` heads over all ranks: over
    each head, or over all heads together, by --qk-norm-type."""
    norm = Norm.of_heads(config, heads)
    if config.qk_norm_type == "per_head":
        return norm
    given = {**vars(norm), "size": heads * config.kv_channels, "heads": None, "partial_over": None}
    return NormOfAllHeads(**given)
