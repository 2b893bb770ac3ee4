"""Options of the network."""

from dataclasses import dataclass, field
from math import sqrt

from parallel_core.config.base import Config, option, section, sibling
from parallel_core.config.compressed_attention import CompressedAttentionConfig
from parallel_core.config.dataset import DatasetConfig
from parallel_core.config.families import (
    MultiLatentAttentionConfig,
    MultiTokenPredictionConfig,
    RopeScalingConfig,
    ScalesConfig,
    SlidingWindowConfig,
    SparseAttentionConfig,
)
from parallel_core.config.float8 import Float8Config
from parallel_core.config.fused import FusedOperators
from parallel_core.config.hybrid import HybridConfig
from parallel_core.config.hyper_connections import HyperConnectionsConfig
from parallel_core.config.linear_attention import LinearAttentionConfig
from parallel_core.config.lora import LoraConfig
from parallel_core.config.moe import MoEConfig
from parallel_core.config.optimizer import OptimizerConfig
from parallel_core.config.parallel import ParallelConfig
from parallel_core.config.qk_clip import QKClipConfig
from parallel_core.config.recompute import MEGATRON_NAMES, RecomputeConfig
from parallel_core.config.training import TrainingConfig
from parallel_core.numerics.activations import ACTIVATIONS
from parallel_core.numerics.dtypes import FLOATS


@dataclass(kw_only=True)
class FlashAttentionConfig(Config):
    """Arguments of the fused attention operator."""

    sparse_mode: int = option("--sparse-mode", 0, at_least=0, at_most=4)
    """Kind of mask, by its number, that the fused operator is told; what is masked follows from the model."""
    pre_tokens: int = option("--pre-tockens", 1048576, at_least=0)
    """Number of tokens before its own that a query may see, in every layer, with sparse_mode 0 or 4."""
    next_tokens: int = option("--next-tockens", 0, at_least=0, of="run")
    """Number of tokens after its own that a query may see by the operator's mask; the model is causal: none."""
    input_layout: str = option("--shape-order", "SBH", choices=("SBH", "BSH", "BSND", "BNSD"), of="run")
    """Order of the operator's dimensions: B batch, S sequence, N heads, D head size, H = N x D."""

    @property
    def has_band(self) -> bool:
        """Whether `sparse_mode` is one that reads `pre_tokens`: 0 or 4."""
        return self.sparse_mode in (0, 4)


@section
class ModelConfig(Config):
    """Options of the transformer's shape, numerics and initialisation. In an `AllConfig` the section also has the other
    sections as attributes."""

    vocab_size: int = option(
        "--padded-vocab-size", at_least=1, missing="add --vocab-size or a tokenizer whose files say it", of="shapes"
    )
    """Rows of the embedding table, a multiple of the tensor-parallel size; by default the tokenizer's vocabulary,
    padded by --make-vocab-size-divisible-by."""
    unpadded_vocab_size: int = option("--vocab-size", None, at_least=1, of="shapes")
    """Number of ids that the tokenizer can produce; `vocab_size` if not given."""
    make_vocab_size_divisible_by: int = option("--make-vocab-size-divisible-by", 128, at_least=1, of="run")
    """The vocabulary is padded to a multiple of this times the tensor-parallel size."""
    num_layers: int = option("--num-layers", at_least=1, of="shapes")
    """Number of transformer layers of the whole model, those that do nothing included."""
    hidden_size: int = option("--hidden-size", at_least=1, of="shapes")
    """Width of the residual stream."""
    seq_length: int = option("--seq-length", at_least=1, of="run")
    """Number of tokens of one training sample."""
    max_position_embeddings: int = option("--max-position-embeddings", None, at_least=1)
    """Rows of the position table; `seq_length` if not given."""
    num_attention_heads: int = option("--num-attention-heads", at_least=1)
    """Number of query heads of a layer."""
    group_query_attention: bool = option("--group-query-attention", False, of="shapes")
    """Whether query heads share key/value heads."""
    num_query_groups: int = option("--num-query-groups", None, at_least=1)
    """Number of key/value heads of a layer; as many as query heads without `group_query_attention`."""
    kv_channels: int = option("--kv-channels", None, at_least=1)
    """Width of one head; `hidden_size / num_attention_heads` if not given."""
    ffn_hidden_size: int = option("--ffn-hidden-size", None, at_least=1, of="shapes")
    """Width of the feed-forward block; if not given 4 `hidden_size`, with swiglu 8/3, rounded down to a multiple of
    64."""

    hidden_act: str = option("--hidden-act", "gelu", choices=tuple(ACTIVATIONS))
    """Activation of the feed-forward block; in the `glu` kinds one half of a doubled first linear gates the other."""
    activation_func_clamp_value: float | None = option("--activation-func-clamp-value", None, above=0)
    """Upper bound of a gated activation's gate; the features that it gates are kept between this and its negative."""
    glu_linear_offset: float = option("--glu-linear-offset", 0.0)
    """Added to the features that a gated activation gates."""
    bias_gelu_fusion: bool = option("--no-bias-gelu-fusion", True)
    """Compute --hidden-act gelu by its tanh form. Switched off, and where linears have no bias, by its erf form."""
    normalization: str = option("--normalization", "LayerNorm", choices=("LayerNorm", "RMSNorm", "FusedRMSNorm"))
    """Kind of every norm; FusedRMSNorm is RMSNorm by the device's fused operator where there is one."""
    norm_epsilon: float = option("--norm-epsilon", 1e-5, above=0)
    """Added to the variance inside a norm's square root."""
    apply_layernorm_1p: bool = option("--apply-layernorm-1p", False)
    """Store norm weights minus one, so that weight decay pulls them to one."""
    qk_layernorm: bool = option("--qk-layernorm", False)
    """Normalise each query and key head before rotary positions."""
    qk_norm_type: str = option("--qk-norm-type", "per_head", choices=("per_head", "per_layer"))
    """Whether `qk_layernorm` normalises each head by itself, or all queries, and all keys, of a token together."""
    qk_norm_after_rotary: bool = option("--qk-layernorm-after-rope", False)
    """`qk_layernorm` normalises heads after rotary positions (Hunyuan-Large, 2024), not before."""
    use_pre_norm: bool = option("--no-pre-norm", True)
    """Norm the inputs of attention and feed-forward block."""
    use_sandwich_norm: bool = option("--use-sandwich-norm", False)
    """Norm also the outputs of attention and feed-forward block, before they are added to the residual."""
    attn_post_norm_scale: float = option("--attn-post-norm-scale", 1.0, at_least=0, at_most=1, of="run")
    """Initial weight of the sandwich norm after attention."""
    ffn_post_norm_scale: float = option("--ffn-post-norm-scale", 1.0, at_least=0, at_most=1, of="run")
    """Initial weight of the sandwich norm after the feed-forward block."""
    use_final_norm: bool = option("--no-post-layer-norm", True)
    """Normalise the last layer's output."""
    apply_residual_connection_post_norm: bool = option("--apply-residual-connection-post-layernorm", False)
    """Take the residual after a layer's norm instead of before it."""

    position_embedding_type: str = option(
        "--position-embedding-type", "learned_absolute", choices=("learned_absolute", "rope", "none", "alibi")
    )
    """Kind of positions: a table of learned ones, rotary (rope), none, or a bias by distance (alibi)."""
    use_rotary_embedding: bool = option("--use-rotary-position-embeddings", False)
    """The older spelling of `position_embedding_type` rope: kept equal to it."""
    rotary_base: float = option("--rotary-base", 10000.0, above=0)
    """Base of the geometric series of rotary wavelengths."""
    rotary_percent: float = option("--rotary-percent", 1.0, above=0, at_most=1)
    """Share of each head's channels that rotate."""
    rotary_interleaved: bool = option("--rotary-interleaved", False)
    """Rotate neighbouring pairs of channels instead of the two halves of a head."""
    rotary_seq_len_interpolation_factor: float | None = option("--rotary-seq-len-interpolation-factor", None, above=0)
    """Divisor of positions (position interpolation)."""
    rope_scaling: RopeScalingConfig = field(default_factory=RopeScalingConfig)
    """Options that stretch rotary positions beyond the length that a model was first trained on."""
    sliding_window: SlidingWindowConfig = field(default_factory=SlidingWindowConfig)
    """Attention to the latest tokens only."""
    multi_latent_attention: MultiLatentAttentionConfig = field(default_factory=MultiLatentAttentionConfig)
    """Attention over low-rank keys and values."""
    sparse_attention: SparseAttentionConfig = field(default_factory=SparseAttentionConfig)
    """Attention to keys that an indexer chooses."""
    compressed_attention: CompressedAttentionConfig = field(default_factory=CompressedAttentionConfig)
    """Attention over a window of keys and over entries that compress several keys each (DeepSeek-V4, 2026)."""
    linear_attention: LinearAttentionConfig = field(default_factory=LinearAttentionConfig)
    """Mixers that keep a state instead of keys and values, in some layers."""
    hybrid: HybridConfig = field(default_factory=HybridConfig)
    """Layers with the parts that a letter gives."""
    hyper_connections: HyperConnectionsConfig = field(default_factory=HyperConnectionsConfig)
    """Several residual streams in the place of one."""
    float8: Float8Config = field(default_factory=Float8Config)
    """Rounding of the operands of linears' products to 8 bits."""
    cla_share_factor: int = option("--cla-share-factor", 1, at_least=1)
    """Number of neighbouring layers that share keys and values, which the first of them makes (cross-layer
    attention)."""
    attention_output_gate: bool = option("--attention-output-gate", False)
    """Multiply attention's output by the sigmoid of gates, which its first linear gives with the queries."""
    multi_token_prediction: MultiTokenPredictionConfig = field(default_factory=MultiTokenPredictionConfig)
    """Multi-token prediction: layers that predict the tokens after the next one."""
    scales: ScalesConfig = field(default_factory=ScalesConfig)
    """Constants that some families multiply by or cap with."""
    embedding_layernorm: bool = option("--embed-layernorm", False)
    """Normalise word embeddings by a layer norm, before positions are added."""

    add_bias_linear: bool = option("--disable-bias-linear", True, of="shapes")
    """Give linears a bias; where --add-qkv-bias and --add-dense-bias are not given, they follow this."""
    qkv_has_bias: bool = option("--add-qkv-bias", None)
    """Whether the query/key/value projection has a bias; `add_bias_linear` if not given."""
    out_proj_has_bias: bool = option("--add-dense-bias", None)
    """Whether the attention output projection has a bias; `add_bias_linear` if not given."""
    mlp_has_bias: bool = option("--disable-bias-linear", None)
    """Whether the feed-forward linears have biases; `add_bias_linear` if not given."""
    untie_embeddings_and_output_weights: bool = option("--untie-embeddings-and-output-weights", False, of="shapes")
    """Give the output layer a weight of its own."""
    output_layer_bias: bool = option("--add-output-layer-bias", False)
    """Give the output layer a bias."""

    softmax_type: str = option("--softmax-type", "vanilla", choices=("vanilla", "off-by-one", "learnable"))
    """The score that attention's softmax has beside those of the keys: none (vanilla), 0 (off-by-one), or a learnt one
    for each head (learnable)."""

    attention_dropout_rate: float = option("--attention-dropout", 0.1, at_least=0, below=1, of="run")
    """Dropout on attention probabilities."""
    hidden_dropout_rate: float = option("--hidden-dropout", 0.1, at_least=0, below=1, of="run")
    """Dropout on the embedding and on what each block adds to the residual."""
    apply_query_key_layer_scaling: bool = option("--apply-query-key-layer-scaling", False, of="run")
    """Divide attention scores by the layer's number and undo it in a float32 softmax."""
    attention_softmax_in_fp32: bool = option("--attention-softmax-in-fp32", False, of="run")
    """Compute the attention softmax in float32."""
    masked_softmax_fusion: bool = option("--no-masked-softmax-fusion", True, of="run")
    """Attention's softmax in float32, in one operator; else in the compute type or by `attention_softmax_in_fp32`."""

    init_method_std: float = option("--init-method-std", 0.02, at_least=0, of="run")
    """Standard deviation of initial weights; output projections divide it by sqrt(2 `num_layers`)."""
    embedding_init_method_std: float = option("--embedding-init-method-std", None, at_least=0, of="run")
    """Standard deviation of initial embeddings; `init_method_std` if not given."""
    use_mup: bool = option("--use-mup", False, of="run")
    """Let initial values, scales and learning rates follow from the width, so that those of a narrow model serve a wide
    one (mu-P; Yang et al., "Tensor Programs V", 2022)."""
    params_dtype: str = option("--params-dtype", "float32", choices=FLOATS, of="run")
    """Type in which weights are kept by the model."""
    compute_dtype: str = option("--compute-dtype", None, choices=FLOATS, of="run")
    """Type in which layers compute; `params_dtype` if not given."""
    embedding_init_dtype: str = option("--embedding-dtype", None, choices=FLOATS, of="run")
    """Type in which embeddings are initialised; `params_dtype` if not given."""
    fp16_lm_cross_entropy: bool = option("--fp16-lm-cross-entropy", False, of="run")
    """Give cross entropy float16 logits instead of a float32 copy."""
    fp32_residual_connection: bool = option("--fp32-residual-connection", False, of="run")
    """Keep the residual stream in float32."""

    transformer_impl: str = option(
        "--transformer-impl", "transformer_engine", choices=("local", "transformer_engine"), of="run"
    )
    """The implementation in Megatron whose behaviour is followed where the two differ."""
    use_flash_attention: bool = option("--use-flash-attn", False, of="run")
    """Attention by the device's fused operator, or in blocks: without a score matrix of sequence by sequence."""
    qk_clip: QKClipConfig = field(default_factory=QKClipConfig)
    """Bounds of attention's largest scores."""
    fa_config: FlashAttentionConfig = field(default_factory=FlashAttentionConfig)
    """Arguments of the fused attention operator."""
    apply_rope_fusion: bool = option("--no-rope-fusion", True, of="run")
    """Rotary positions by the device's fused operator."""
    apply_swiglu_fusion: bool = option("--use-fused-swiglu", False, of="run")
    """Swiglu by the device's fused operator."""

    # The sibling sections, set by `AllConfig`.
    parallel_config: ParallelConfig = sibling()
    dataset_config: DatasetConfig = sibling()
    training_config: TrainingConfig = sibling()
    moe_config: MoEConfig = sibling()
    lora_config: LoraConfig = sibling()
    recompute_config: RecomputeConfig = sibling(shows=MEGATRON_NAMES)
    optimizer_config: OptimizerConfig = sibling()

    def derive(self) -> None:
        self.fill("unpadded_vocab_size", lambda: self.vocab_size)
        self.fill("max_position_embeddings", lambda: self.seq_length)
        self.fill("kv_channels", lambda: self.hidden_size // self.num_attention_heads)
        if self.group_query_attention is False:
            self.num_query_groups = self.num_attention_heads
        self.fill("num_query_groups", lambda: self.num_attention_heads)
        self.fill("ffn_hidden_size", self._default_ffn_hidden_size)
        for bias in ("qkv_has_bias", "out_proj_has_bias", "mlp_has_bias"):
            self.fill(bias, lambda: self.add_bias_linear)
        self.fill("embedding_init_method_std", lambda: self.init_method_std)
        self.fill("compute_dtype", lambda: self.params_dtype)
        self.fill("embedding_init_dtype", lambda: self.params_dtype)
        self.hybrid.fill("mamba_num_heads", lambda: max(1, 2 * self.hidden_size // self.hybrid.mamba_head_dim))
        self.multi_latent_attention.fill("rotary_scaling_factor", self._default_latent_factor)
        if self.fa_config.pre_tokens >= self.seq_length:
            self.fa_config.pre_tokens = FlashAttentionConfig.pre_tokens
        if self.add_bias_linear is False:
            self.bias_gelu_fusion = False
        if self.apply_query_key_layer_scaling is True:
            self.attention_softmax_in_fp32 = True
        if self.use_rotary_embedding is True:
            self.position_embedding_type = "rope"
        self.use_rotary_embedding = self.position_embedding_type == "rope"

    def _default_latent_factor(self) -> float:
        return self.rope_scaling.factor if self.rope_scaling.type in ("yarn", "dynamic") else 1.0

    def _default_ffn_hidden_size(self) -> int:
        if self.hidden_act == "swiglu":
            return int((4 * self.hidden_size * 2 / 3) / 64) * 64
        return 4 * self.hidden_size

    @property
    def initial_std(self) -> float:
        """Standard deviation of the normal initial weights of linears between embedding and output layer:
        --init-method-std over the root of mu-P's width multiplier. The model's row-parallel ones divide it further."""
        return self.init_method_std / sqrt(self.optimizer_config.width_multiplier)

    @property
    def copies_embedding(self) -> bool:
        """Whether a last stage that is not the first has a copy of the embedding for multi-token prediction; a folded
        pipeline, with first and last chunk on one stage, needs none."""
        return self.multi_token_prediction.uses_embedding and not self.parallel_config.placement.folded

    @property
    def fused_operators(self) -> FusedOperators:
        """The operators that the options ask for as the device's fused ones: rotary positions only where there are any,
        activations only if they are swiglu. With them, the order of dimensions that fused attention takes."""
        switches = {
            "attention": self.use_flash_attention,
            "rotary": self.apply_rope_fusion and self.rotates,
            "bias_activation": self.apply_swiglu_fusion and self.hidden_act == "swiglu",
            "rms_norm": self.normalization == "FusedRMSNorm",
        }
        chosen = tuple(operator for operator, is_on in switches.items() if is_on)
        return FusedOperators(chosen, self.fa_config.input_layout)

    @property
    def has_delta_nets(self) -> bool:
        """Whether --experimental-attention-variant is gated_delta_net."""
        return self.sparse_attention.variant == "gated_delta_net"

    @property
    def has_lightning_attention(self) -> bool:
        """Whether --experimental-attention-variant is lightning_attention."""
        return self.sparse_attention.variant == "lightning_attention"

    def shares_keys(self, layer: int) -> bool:
        """Whether the layer of this global number, from 0, uses the keys and values of an earlier one (cross-layer
        attention)."""
        return layer < self.num_layers and layer % self.cla_share_factor != 0

    @property
    def rounds_weights(self) -> bool:
        """Whether weights of column- and row-parallel linears are rounded to MXFP4 where they are multiplied. Experts'
        are with any --qat-scheme."""
        return self.training_config.precision.qat_scheme == "w4a16-mxfp4"

    @property
    def rotates(self) -> bool:
        """Whether queries and keys have rotary positions; those of latent attention always do."""
        return self.position_embedding_type == "rope" or self.multi_latent_attention.enabled

    @property
    def rotating_share(self) -> float:
        """Share of a head's channels, or of latent attention's positional ones, that rotate: --rotary-percent, but 1 in
        latent attention with a `rope_scaling.type`. Not for compressed attention, whose positional ones all rotate."""
        stretched = self.multi_latent_attention.enabled and self.rope_scaling.type is not None
        return 1.0 if stretched else self.rotary_percent

    @property
    def rotary_factor(self) -> float:
        """The factor of the options that stretch rotary positions, also where `rope_scaling.type` does not stretch by
        it: with latent attention --rotary-scaling-factor, without it --rope-scaling-factor."""
        if self.multi_latent_attention.enabled:
            return self.multi_latent_attention.rotary_scaling_factor
        return self.rope_scaling.factor

    @property
    def residual_width(self) -> int:
        """Width of a token's residual stream; with --enable-mhc, of all its streams together."""
        return self.hidden_size * (self.hyper_connections.streams if self.hyper_connections.enabled else 1)

    @property
    def residual_dtype(self) -> str:
        """Name of the type of the residual stream, in which pipeline stages send it to each other."""
        return "float32" if self.fp32_residual_connection else self.compute_dtype

    @property
    def gated_linear_unit(self) -> bool:
        """Whether the feed-forward block's first linear gives twice as many features as its second takes, one half of
        which gates the other."""
        return ACTIVATIONS[self.hidden_act].gated


TransformerConfig = ModelConfig
