"""Flags that are ignored or refused: forms of attention, positions and layers that are not a Megatron GPT."""

from mapping.flags.flag import group, ignored, refused

FLAGS = group(
    "Other architectures: forms of attention, positions and layers that are not a Megatron GPT",
    ignored(
        "rotary positions leave no others to switch off; without them --position-embedding-type none says it",
        "--no-position-embedding>add_position_embedding=off",
    ),
    ignored(
        "together they build the causal mask into the bias, which gives causal attention with ALiBi as it is",
        "--square-alibi-mask --fill-neg-inf",
    ),
    refused(
        "this form of attention is out of scope; leave it out",
        """
        --hybrid-context-parallel --qk-l2-norm
        --no-rope-freq=str --enable-gpt-oss --n-head-kv=int
        --attention-head-type=str{multihead,multiquery} --position-encoding-2d
        """,
    ),
    refused(
        "this form of multi-token prediction is out of scope; use --mtp-num-layers alone",
        """
        --mtp-standalone --mtp-use-repeated-layer --mtp-detach-heads --mtp-hsm --qad-train-target=str{base,mtp,both}
        --freeze-base-for-mtp
        """,
    ),
    refused(
        "layers of multi-token prediction are whole transformer layers; leave it out",
        "--mtp-hybrid-override-pattern=str",
    ),
    refused("a state space has as many features as its heads; use --mamba-num-heads", "--mamba-d-ssm=int"),
    ignored(
        "states are float32 always, in training and in generation",
        """
        --mamba-training-ssm-states-dtype=str{fp32,bf16} --mamba-inference-conv-states-dtype=str{bf16,fp16,fp32}:bf16
        --mamba-inference-ssm-states-dtype=str{bf16,fp16,fp32}:bf16
        """,
    ),
    ignored(
        "a state space keeps its inputs, and computes the rest again, in any case",
        "--disable-mamba-mem-eff-path>use_mamba_mem_eff_path=off",
    ),
    refused(
        "this activation is out of scope; use --swiglu, --geglu, --gelu-tanh or --squared-relu",
        """
        --openai-gelu --onnx-safe=str
        --glu-activation=str
        """,
    ),
    refused(
        "products of several Householder matrices are out of scope; use gated_delta_net",
        "--gdp-num-householder=int:3 --gdp-cutedsl-kernel",
    ),
    ignored("the length of a chunk changes the order of sums alone", "--mamba-chunk-size=int:256"),
    ignored(
        "gated delta nets are computed by the operators in use, with the same result",
        "--use-triton-gdn --no-enable-linear-qkv",
    ),
    refused(
        "this variant of sparse attention is out of scope; leave it out",
        """
        --no-dsa-indexer-scoring-relu|--disable-dsa-indexer-scoring-relu=off
        """,
    ),
    ignored(
        "sparse attention is computed by the operators in use, with the same result",
        """
        --dsa-kernel-backend=str{none,tilelang,cudnn}:none --use-fused-lightning-indexer
        --use-fused-lightning-indexer-loss --use-sparse-flash-attn
        """,
    ),
    ignored(
        "turning queries and keys of the indexer by a Hadamard matrix prepares them for 8 bits and changes no score",
        """
        --no-dsa-indexer-rotate-activation|--disable-dsa-indexer-rotate-activation=off --no-use-sparse-c8-indexer
        """,
    ),
    ignored(
        "neighbouring channels of the indexer's heads are a pair, as in those of latent attention",
        "--dsa-indexer-rope-interleaved",
    ),
    ignored("norms compute in float32 always", "--dsa-indexer-k-norm-fp32"),
    ignored("the indexer's scores are not computed in 8 bits", "--scale-fmt=str"),
    ignored("it is --hidden-size over --mup-base-hidden-size", "--mup-width-mult=float:1.0"),
    refused("this variant of experts is out of scope; leave it out", "--noisy-gate-policy=str --use-global-aux-loss"),
    ignored(
        "hyper-connections are computed by the operators in use, with the same result",
        "--use-triton-mhc --use-fused-mhc",
    ),
    refused(
        "this form of positions is out of scope; use --position-embedding-type rope, alibi or none",
        """
        --mrope-section=int+
        --relative-attention-num-buckets=int:32 --relative-attention-max-distance=int:128 --alibi-fusion-attn-type=int
        --alibi-diagonal-opposite --yarn-scaling-factor=float:1.0 --use-alibi-mask
        --use-mistral-rotary-position-embeddings
        """,
    ),
    ignored(
        "only sequences beyond --max-position-embeddings are stretched, which are refused", "--dynamic-factor=float:1.0"
    ),
    refused(
        "this variant of latent attention is out of scope; leave it out for multi-latent attention as published",
        """
        --mlp-chunks-for-prefill=int:1 --cache-mla-latents
        """,
    ),
    refused(
        "encoders, retrieval and layers that differ one by one are out of scope; only decoders are trained",
        """
        --decoder-num-layers=int --bert-no-binary-head>bert_binary_head=off --decoder-seq-length=int
        --mask-prob=float:0.15 --heterogeneous-layers-config-path=str
        --heterogeneous-layers-config-encoded-json=str --retriever-seq-length=int:256
        --encoder-tensor-model-parallel-size=int:0 --encoder-pipeline-model-parallel-size=int:0
        --pipeline-model-parallel-split-rank=int
        """,
    ),
    refused(
        "weights start from a normal distribution; leave it out or give --init-method-std",
        "--init-method-xavier-uniform",
    ),
    refused(
        "this computes part of the network in another type; leave it out, norms compute in float32 anyway",
        "--output-logit-dtype>logit_dtype=str{bf16,fp32} --input-layernorm-in-fp32",
    ),
    ignored(
        "the dense network of the classes from before Megatron-Core is the same mathematics, with other names",
        "--use-legacy-models",
    ),
    refused(
        "the classes from before Megatron-Core are gone; leave it out",
        "--transformer-type=str:megatron",
    ),
    refused(
        "the DeepSpeed form of experts is out of scope; use the megatron_moe flags",
        "--no-use-rts=off:False",
    ),
    ignored("layers share keys and values where --cla-share-factor says so", "--share-kvstates"),
    ignored("layers have compressed entries where --compress-ratios says so", "--kv-compress"),
    ignored("a cache of keys has the size that its texts need", "--max-batch-size=int:4"),
    ignored("the device's own kernel is used where there is one; the result is the same", "--use-triton-swiglu-limit"),
)
