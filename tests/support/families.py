"""The model families that layouts are tested with, as flags beside TINY."""

STREAMS = "--enable-mhc --hc-mult 3 --hc-sinkhorn-iters 4 --mhc-init-gating-factor 0.5 --hidden-dropout 0"
"""Flags of several residual streams (hyper-connections), to be added to any family."""

BESIDE = (
    "--mamba-head-dim 8 --mamba-num-heads 8 --mamba-state-dim 6 --mamba-num-groups 4 --no-mamba-rms-norm "
    "--mamba-multipliers 0.7 0.5 0.8 1.25 0.6 --side-by-side-weights 0.9 0.5 --key-multiplier 0.5 "
    "--gate-multiplier 0.8 --mlp-residual-weights 1 0.6 --normalization RMSNorm --swiglu --disable-bias-linear "
    "--position-embedding-type rope --hybrid-layer-pattern"
)
"""Flags of attention and state spaces side by side in a layer; a layer pattern with H follows them."""

ENTRIES = (
    "--multi-latent-attention --q-lora-rank 12 --kv-lora-rank 8 --qk-head-dim 8 --qk-pos-emb-head-dim 4 "
    "--qk-layernorm --o-groups 4 --o-lora-rank 6 --original-seq-len 64 --enable-dsa-indexer --index-n-heads 4 "
    "--index-head-dim 8 --index-topk 8 --position-embedding-type deepseek4 --normalization RMSNorm --swiglu "
    "--disable-bias-linear --sliding-window-size 32 --compress-ratios"
)
"""Flags of compressed attention; the compression ratios of the layers follow them."""

FAMILIES = {
    "gpt": "--untie-embeddings-and-output-weights",
    "gpt tied, dropout": "--attention-dropout 0.2 --hidden-dropout 0.1",
    "gpt erf gelu": "--no-bias-gelu-fusion",
    "llama": "--position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear "
    "--group-query-attention --num-query-groups 2 --untie-embeddings-and-output-weights",
    "rope interleaved, scaled": "--position-embedding-type rope --rotary-interleaved "
    "--rotary-seq-len-interpolation-factor 2 --rotary-base 500000",
    "head norms, part of the head turns": "--position-embedding-type rope --rotary-percent 0.5 --qk-layernorm "
    "--add-qkv-bias --disable-bias-linear --swiglu",
    "head norms on one shared group": "--group-query-attention --num-query-groups 1 --qk-layernorm --add-qkv-bias "
    "--position-embedding-type rope",
    "squared relu": "--squared-relu --disable-bias-linear",
    "sandwich norm": "--use-sandwich-norm --attn-post-norm-scale 0.5 --ffn-post-norm-scale 0.25 "
    "--normalization RMSNorm",
    "no positions, residual after norm": "--position-embedding-type none --apply-residual-connection-post-layernorm",
    "one-centered norm, biases here and there": "--apply-layernorm-1p --disable-bias-linear --add-dense-bias "
    "--add-output-layer-bias --geglu --apply-query-key-layer-scaling",
    "norm of embeddings": "--embed-layernorm --gelu-tanh",
    "norm of embeddings, no positions": "--embed-layernorm --position-embedding-type rope --norm-epsilon 1e-3 "
    "--add-output-layer-bias --untie-embeddings-and-output-weights",
    "two tokens further": "--mtp-num-layers 2 --position-embedding-type rope --normalization RMSNorm",
    "window in every other layer, cap": "--window-size 5,0 --window-attn-skip-freq 2 --attn-logit-softcapping 0.4 "
    "--position-embedding-type rope",
    "alibi": "--position-embedding-type alibi --sliding-window 9 --group-query-attention --num-query-groups 2",
    "latent attention": "--multi-latent-attention --kv-lora-rank 12 --qk-head-dim 6 --qk-pos-emb-head-dim 4 "
    "--v-head-dim 5 --qk-layernorm --normalization RMSNorm --rotary-scaling-factor 4 --mscale-all-dim 0.5",
    "latent attention, compressed queries": "--multi-latent-attention --q-lora-rank 20 --kv-lora-rank 12 "
    "--qk-head-dim 6 --qk-pos-emb-head-dim 4 --v-head-dim 8 --qk-layernorm --rope-type rope --disable-bias-linear",
    "sparse attention": "--multi-latent-attention --q-lora-rank 20 --kv-lora-rank 12 --qk-head-dim 6 "
    "--qk-pos-emb-head-dim 4 --v-head-dim 8 --qk-layernorm --rope-type rope --normalization RMSNorm "
    "--experimental-attention-variant dsa --dsa-indexer-n-heads 4 --dsa-indexer-head-dim 8 --dsa-indexer-topk 5 "
    "--dsa-indexer-loss-coeff 0.5",
    "lightning attention": "--experimental-attention-variant lightning_attention --linear-attention-freq 2 "
    "--apply-residual-connection-post-layernorm --linear-attention-residual-weights 1.5 0.7 "
    "--position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear",
    "gated delta net": "--experimental-attention-variant gated_delta_net --linear-attention-freq 2 "
    "--linear-key-head-dim 6 --linear-value-head-dim 4 --linear-num-key-heads 4 --linear-num-value-heads 8 "
    "--norm-epsilon 1e-2 --attention-output-gate --apply-layernorm-1p --qk-layernorm --rotary-percent 0.5 "
    "--position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear "
    "--group-query-attention --num-query-groups 2",
    "state spaces": "--hybrid-override-pattern M* --mamba-head-dim 8 --mamba-num-heads 8 --mamba-state-dim 6 "
    "--mamba-num-groups 4 --normalization RMSNorm --disable-bias-linear --position-embedding-type none",
    "experts": "--position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear --num-experts 4 "
    "--moe-layer-freq 2 --moe-ffn-hidden-size 48 --moe-token-dispatcher-type alltoall "
    "--moe-shared-expert-intermediate-size 32 --moe-shared-expert-gate --untie-embeddings-and-output-weights",
    "experts with biases": "--num-experts 4 --moe-grouped-gemm --moe-token-dispatcher-type alltoall "
    "--untie-embeddings-and-output-weights",
    "per token loss": "--calculate-per-token-loss",
    "sgd": "--optimizer sgd --weight-decay 0.1",
}
