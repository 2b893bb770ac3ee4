"""Options that only some model families have: stretched rotary positions, latent attention, constant scales, windows,
multi-token prediction, sparse attention."""

from dataclasses import dataclass

from parallel_core.config.base import Config, option


@dataclass(kw_only=True)
class RopeScalingConfig(Config):
    """Options that stretch rotary positions beyond the length that a model was first trained on."""

    type: str | None = option("--rope-scaling-type", None, choices=("llama3", "yarn", "longrope", "dynamic"))
    """How positions are stretched: as Llama 3.1, YaRN (Peng et al., 2023), LongRoPE (Ding et al., 2024), or dynamic NTK
    by the sequence length; none: positions are not stretched."""
    factor: float = option("--rope-scaling-factor", 8.0, above=0)
    """Factor by which long wavelengths are stretched."""
    original_max_position_embeddings: int | None = option(
        "--rope-scaling-original-max-position-embeddings", None, at_least=2
    )
    """The length, in tokens, that the model was first trained on; none: 8192 (llama3), 4096 (yarn), or
    --max-position-embeddings."""
    low_freq_factor: float = option("--low-freq-factor", 1.0, above=0)
    """llama3: wavelengths above (original length / this) are multiplied by the whole --rope-scaling-factor."""
    high_freq_factor: float = option("--high-freq-factor", 4.0, above=0)
    """llama3: wavelengths below (original length / this) are left alone."""
    beta_fast: float = option("--beta-fast", 32, above=0)
    """yarn: channels that turn more often than this over the original length are left alone."""
    beta_slow: float = option("--beta-slow", 1, above=0)
    """yarn: channels that turn less often than this are stretched whole."""
    yarn_correction_range_round_to_int: bool = option("--no-yarn-correction-range-round-to-int", True)
    """yarn: round the numbers of the pairs that turn --beta-fast and --beta-slow times, down and up; frequencies are
    blended between these two."""
    mscale: float = option("--rope-scaling-mscale", 1.0, at_least=0)
    """yarn: m in 0.1 m ln(factor) + 1, the factor of cosines and sines, which sharpens attention."""
    mscale_all_dim: float = option("--rope-scaling-mscale-all-dim", 0.0, at_least=0)
    """m in 0.1 m ln(factor) + 1, whose square multiplies latent attention's scores, and by which yarn's cosines and
    sines are divided (DeepSeek's models)."""
    long_factor: list[float] | None = option("--long-factor", None)
    """longrope: divisor of each channel pair's frequency, for sequences longer than the original length."""
    short_factor: list[float] | None = option("--short-factor", None)
    """longrope: divisor of each channel pair's frequency, for sequences of at most the original length."""
    long_mscale: float | None = option("--long-mscale", None, above=0)
    """longrope: factor of cosines and sines, for sequences longer than the original length; computed from the lengths
    if not given."""
    short_mscale: float | None = option("--short-mscale", None, above=0)
    """longrope: factor of cosines and sines, for sequences of at most the original length; computed from the lengths if
    not given."""
    longrope_freqs_type: str = option("--longrope-freqs-type", "mul", choices=("mul", "outer"), of="run")
    """longrope: whether angles are the product of positions and frequencies (mul) or their outer product (outer): the
    same numbers."""


@dataclass(kw_only=True)
class MultiLatentAttentionConfig(Config):
    """Options of multi-head latent attention: keys and values of low rank (DeepSeek-V2, 2024)."""

    enabled: bool = option("--multi-latent-attention", False)
    """Attend by latent attention."""
    q_lora_rank: int | None = option("--q-lora-rank", None, at_least=1, of="shapes")
    """Rank of the query; none: queries are not compressed."""
    kv_lora_rank: int = option("--kv-lora-rank", 32, at_least=1, of="shapes")
    """Rank of keys and values together."""
    qk_head_dim: int = option("--qk-head-dim", 128, at_least=1)
    """Number of channels of a query or key head that do not rotate."""
    qk_pos_emb_head_dim: int = option("--qk-pos-emb-head-dim", 64, at_least=1)
    """Number of channels of a query or key head that rotate."""
    v_head_dim: int = option("--v-head-dim", 128, at_least=1)
    """Number of channels of a value head."""
    scale_q_lora: bool = option("--enable-mla-scale-q-lora", False)
    """Multiply the query's latent by sqrt(hidden size / its rank) (LongCat-Flash, 2025)."""
    scale_kv_lora: bool = option("--enable-mla-scale-kv-lora", False)
    """Multiply the latent of keys and values by sqrt(hidden size / its rank)."""
    latent_norm_epsilon: float | None = option("--latent-norm-epsilon", None, above=0)
    """Epsilon of the norms of latents; none: --norm-epsilon. DeepSeek's models have 1e-6, whatever rms_norm_eps is."""
    rotary_scaling_factor: float = option("--rotary-scaling-factor", None, above=0)
    """Factor by which positions are stretched; if not given, --rope-scaling-factor with yarn and dynamic, else 1."""


@dataclass(kw_only=True)
class ScalesConfig(Config):
    """Constants that some families multiply by or cap with."""

    embedding: float = option("--embedding-multiplier-scale", 1.0, above=0)
    """Embeddings are multiplied by this."""
    residual: float = option("--scale-depth", 1.0, above=0)
    """Factor of a block's output before it is added to the residual."""
    attention_residual: list[float] | None = option("--attention-residual-weights", None)
    """Weights of the residual and of what attention adds to it (MiniMax-01, 2025); none: 1 and 1."""
    linear_attention_residual: list[float] | None = option("--linear-attention-residual-weights", None)
    """Weights of the residual and of what lightning attention adds to it, in layers with that; none: 1 and 1."""
    mlp_residual: list[float] | None = option("--mlp-residual-weights", None)
    """Weights of the residual and of what a feed-forward block adds to it; none: 1 and 1."""
    logits: float = option("--output-multiplier-scale", 1.0, above=0)
    """Logits are multiplied by this."""
    logit_cap: float | None = option("--output-logit-softcapping", None, above=0)
    """Logits go through cap x tanh(logit / cap)."""
    attention_cap: float | None = option("--attn-logit-softcapping", None, above=0)
    """Attention scores go through cap x tanh(score / cap)."""
    attention: float | None = option("--query-pre-attn-scalar", None, above=0)
    """Attention scores are multiplied by this; 1 / sqrt(head size) if not given."""
    key: float = option("--key-multiplier", 1.0, above=0)
    """Keys are multiplied by this, and scores with them (Falcon-H1, 2025)."""
    gate: float = option("--gate-multiplier", 1.0, above=0)
    """Factor of the input of a gated activation's gate."""

    def of_scores(self, default: float) -> float:
        """Factor of attention scores: the product of `key` and `attention`, or of `key` and `default` where `attention`
        is None."""
        return (self.attention or default) * self.key


@dataclass(kw_only=True)
class SlidingWindowConfig(Config):
    """Options of attention to the latest tokens only."""

    size: int | None = option("--sliding-window", None, at_least=1)
    """Number of tokens before its own that a query sees; none: all."""
    local_rotary_base: float | None = option("--rope-local-base-freq", None, above=0)
    """Rotary base of the layers with the window, whose positions are then not stretched (Gemma 3, 2025); none: these
    layers rotate as the others."""
    skip_freq: int | list[int] | None = option("--window-attn-skip-freq", None)
    """Every so many-th layer, or the layers that a list by layer has as 0, see all earlier tokens; none: no layer."""

    def is_in(self, layer: int) -> bool:
        """Whether the layer of this global number, from 0, has the window, if `size` gives one; layers beyond the end
        of a list of --window-attn-skip-freq are as its last (IndexError for an empty list)."""
        if self.skip_freq is None:
            return True
        if isinstance(self.skip_freq, list):
            return bool(self.skip_freq[min(layer, len(self.skip_freq) - 1)])
        return (layer + 1) % self.skip_freq != 0


@dataclass(kw_only=True)
class MultiTokenPredictionConfig(Config):
    """Options of multi-token prediction: layers that predict the tokens after the next one (DeepSeek-V3, 2024)."""

    num_layers: int | None = option("--mtp-num-layers", None, at_least=0, of="shapes")
    """Number of tokens after the next one that are predicted."""
    loss_scaling_factor: float = option("--mtp-loss-scaling-factor", 0.1, at_least=0, of="run")
    """Weight of the mean of the losses of multi-token prediction."""
    share_embedding_and_output_weight: bool = option("--share-mtp-embedding-and-output-weight", True)
    """Whether the layers of multi-token prediction use the model's embedding and output layer instead of own ones."""

    @property
    def depths(self) -> int:
        """Number of depths of multi-token prediction; 0: none."""
        return self.num_layers or 0

    @property
    def uses_embedding(self) -> bool:
        """Whether the last pipeline stage needs the model's embedding, for depths without an embedding of their own."""
        return self.depths > 0 and self.share_embedding_and_output_weight

    @property
    def own_ends(self) -> int:
        """Number of depths that have an embedding and an output layer of their own (these two are not tied); 0 where
        they use the model's."""
        return 0 if self.share_embedding_and_output_weight else self.depths


@dataclass(kw_only=True)
class SparseAttentionConfig(Config):
    """Options of DeepSeek sparse attention (DeepSeek-V3.2, 2025), in which an indexer chooses the keys that a query
    attends to; `variant` can also name a mixer that keeps a state instead."""

    variant: str | None = option(
        "--experimental-attention-variant", None, choices=("dsa", "gated_delta_net", "lightning_attention")
    )
    """dsa: queries of latent attention see the keys that an indexer chooses. gated_delta_net, lightning_attention (with
    the heads of attention): most layers keep a state instead of keys and values (--linear-attention-freq)."""
    dsa_indexer_n_heads: int = option("--dsa-indexer-n-heads", 64, at_least=1, of="shapes")
    """Number of heads of the indexer's queries."""
    dsa_indexer_head_dim: int = option("--dsa-indexer-head-dim", 128, at_least=1, of="shapes")
    """Width of a head of the indexer."""
    dsa_indexer_topk: int = option("--dsa-indexer-topk", 2048, at_least=1)
    """Number of keys that a query sees at most."""
    dsa_indexer_loss_coeff: float = option("--dsa-indexer-loss-coeff", None, at_least=0, of="run")
    """Coefficient of the loss that trains the indexer, the distance of its scores from attention's probabilities."""
    dsa_indexer_use_sparse_loss: bool = option("--dsa-indexer-use-sparse-loss", False, of="run")
    """Whether the indexer's loss is over the chosen keys alone, instead of all."""
    dsa_indexer_k_norm_epsilon: float | None = option("--dsa-indexer-k-norm-epsilon", None, above=0)
    """Epsilon of the norm of the indexer's keys; none: --latent-norm-epsilon."""
    dsa_indexer_topk_freq: int = option("--dsa-indexer-topk-freq", 1, at_least=1)
    """Every so many-th layer has an indexer; those between use the keys that the last one before them chose (GLM-5,
    2026)."""
    dsa_indexer_skip_topk_offset: int = option("--dsa-indexer-skip-topk-offset", 0, at_least=0)
    """Number of the first layers that have an indexer in any case; the first one always has."""
    index_topk_pattern: str | None = option("--index-topk-pattern", None)
    """A letter for each layer, instead of --dsa-indexer-topk-freq: F, full, has an indexer; S, shared, uses the keys
    that the last F layer before it chose."""
    index_share_for_mtp_iteration: bool = option("--index-share-for-mtp-iteration", False)
    """Whether all layers of multi-token prediction use the keys chosen in the first of them, which then has an
    indexer."""

    @property
    def enabled(self) -> bool:
        """Whether `variant` is dsa."""
        return self.variant == "dsa"

    def is_shared(self, layer: int) -> bool:
        """Whether, in sparse latent attention, the decoder's layer of this number, from 0, uses the keys that an
        earlier layer's indexer chose; for multi-token prediction's layers see `chosen_by`."""
        if self.index_topk_pattern is not None:
            return self.index_topk_pattern[layer] == "S"
        return max(layer + 1 - max(self.dsa_indexer_skip_topk_offset, 1), 0) % self.dsa_indexer_topk_freq != 0

    def chosen_by(self, layer: int, layers: int) -> int:
        """The global number of the layer whose indexer chooses, in sparse latent attention, the keys of layer `layer`
        (both from 0). Layers from `layers` on are multi-token prediction's: with --index-share-for-mtp-iteration the
        first of them chooses for all, else each for itself."""
        if layer >= layers:
            return layers if self.index_share_for_mtp_iteration else layer
        while self.is_shared(layer):
            layer -= 1
        return layer
