"""Flags that are ignored or refused: forms of attention, positions, layers and models."""

from mapping.flags.flag import group, ignored, refused

FLAGS = group(
    "Other architectures: forms of attention, positions and layers that are not a Megatron GPT",
    ignored(
        "rotary positions have no table to leave out; without rotary positions use --position-embedding-type none",
        "--no-position-embedding>add_position_embedding=off",
    ),
    ignored(
        "with --fill-neg-inf, --square-alibi-mask builds the causal mask into ALiBi's bias; attention is causal anyway",
        "--square-alibi-mask --fill-neg-inf",
    ),
    refused(
        "this switch of a whole family is not read; give the family's options by their own flags, or --load its folder "
        "with --use-checkpoint-args",
        "--enable-gpt-oss",
    ),
    refused(
        "queries and keys are normed with a weight (--qk-layernorm) or not at all; leave it out",
        "--qk-l2-norm",
    ),
    refused("context parallelism is ring, ulysses or hybrid; use --context-parallel-algo", "--hybrid-context-parallel"),
    refused(
        "use --group-query-attention and --num-query-groups",
        "--n-head-kv=int --attention-head-type=str{multihead,multiquery}",
    ),
    refused(
        "this form of multi-token prediction is out of scope; use --mtp-num-layers alone",
        """
        --mtp-standalone --mtp-use-repeated-layer --mtp-detach-heads --mtp-hsm
        """,
    ),
    refused(
        "the model and its layers of multi-token prediction are trained together; leave it out",
        "--qad-train-target=str{base,mtp,both} --freeze-base-for-mtp",
    ),
    refused(
        "layers of multi-token prediction are whole transformer layers; leave it out",
        "--mtp-hybrid-override-pattern=str",
    ),
    refused(
        "the number of a state space's features is --mamba-num-heads x --mamba-head-dim; use these", "--mamba-d-ssm=int"
    ),
    ignored(
        "the states of state spaces are float32 always, in training and in generation",
        """
        --mamba-training-ssm-states-dtype=str{fp32,bf16} --mamba-inference-ssm-states-dtype=str{bf16,fp16,fp32}:bf16
        """,
    ),
    ignored(
        "generation keeps the inputs of the short convolution in the type that the model computes in",
        "--mamba-inference-conv-states-dtype=str{bf16,fp16,fp32}:bf16",
    ),
    ignored(
        "a state space keeps its inputs for the backward, and computes all else again, in any case",
        "--disable-mamba-mem-eff-path>use_mamba_mem_eff_path=off",
    ),
    refused(
        "this activation is out of scope; use --swiglu, --geglu, --gelu-tanh or --squared-relu",
        "--openai-gelu --glu-activation=str",
    ),
    refused("no model is exported to ONNX; leave it out", "--onnx-safe=str"),
    refused(
        "products of several Householder matrices are out of scope; use gated_delta_net",
        "--gdp-num-householder=int:3 --gdp-cutedsl-kernel",
    ),
    ignored(
        "the length of the chunks in which a state space is computed changes the order of sums alone",
        "--mamba-chunk-size=int:256",
    ),
    ignored(
        "gated delta nets are computed by the operators in use, with the same result",
        "--use-triton-gdn --no-enable-linear-qkv",
    ),
    refused(
        "the indexer's scores go through a ReLU always; leave it out",
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
        "a Hadamard rotation of the indexer's queries and keys prepares them for 8 bits, which are not computed in; it "
        "changes no score",
        "--no-dsa-indexer-rotate-activation|--disable-dsa-indexer-rotate-activation=off",
    ),
    ignored(
        "rotary positions turn neighbouring channels of the indexer's heads in any case, as those of latent attention",
        "--dsa-indexer-rope-interleaved",
    ),
    ignored("the norm of the indexer's keys computes in float32 always", "--dsa-indexer-k-norm-fp32"),
    ignored("the indexer's scores are not computed in 8 bits", "--scale-fmt=str --no-use-sparse-c8-indexer"),
    ignored("the width multiplier is --hidden-size / --mup-base-hidden-size", "--mup-width-mult=float:1.0"),
    refused(
        "experts are not chosen or balanced in this way; leave it out", "--noisy-gate-policy=str --use-global-aux-loss"
    ),
    ignored(
        "hyper-connections are computed by the operators in use, with the same result",
        "--use-triton-mhc --use-fused-mhc",
    ),
    refused(
        "this form of positions is out of scope; use --position-embedding-type, and to stretch rotary ones "
        "--rope-scaling-type",
        """
        --mrope-section=int+ --position-encoding-2d --no-rope-freq=str
        --relative-attention-num-buckets=int:32 --relative-attention-max-distance=int:128 --alibi-fusion-attn-type=int
        --alibi-diagonal-opposite --yarn-scaling-factor=float:1.0 --use-alibi-mask
        --use-mistral-rotary-position-embeddings
        """,
    ),
    ignored(
        "the factor acts on sequences longer than --max-position-embeddings alone, and these are refused",
        "--dynamic-factor=float:1.0",
    ),
    refused(
        "this flag is for generation servers, which are out of scope; python -m mapping generate caches latents in any "
        "case, and computes a prompt whole; leave it out",
        "--mlp-chunks-for-prefill=int:1 --cache-mla-latents",
    ),
    refused(
        "encoders, retrieval and files that describe each layer by itself are out of scope; only decoders are trained",
        """
        --decoder-num-layers=int --bert-no-binary-head>bert_binary_head=off --decoder-seq-length=int
        --mask-prob=float:0.15 --heterogeneous-layers-config-path=str
        --heterogeneous-layers-config-encoded-json=str --retriever-seq-length=int:256
        --encoder-tensor-model-parallel-size=int:0 --encoder-pipeline-model-parallel-size=int:0
        --pipeline-model-parallel-split-rank=int
        """,
    ),
    refused(
        "initial weights are drawn from a normal distribution; leave it out, or give --init-method-std",
        "--init-method-xavier-uniform",
    ),
    refused(
        "logits and norms cannot be given a type of their own; leave it out: norms compute in float32 in any case",
        "--output-logit-dtype>logit_dtype=str{bf16,fp32} --input-layernorm-in-fp32",
    ),
    ignored(
        "the classes from before Megatron-Core compute the same dense network, under other names of parameters",
        "--use-legacy-models",
    ),
    refused(
        "the classes from before Megatron-Core are gone; leave it out",
        "--transformer-type=str:megatron",
    ),
    refused(
        "DeepSpeed's own form of experts is out of scope; use Megatron's flags for experts",
        "--no-use-rts=off:False",
    ),
    ignored("layers share keys and values where --cla-share-factor says so", "--share-kvstates"),
    ignored("layers have compressed entries where --compress-ratios says so", "--kv-compress"),
    ignored("generation's cache of keys and values has the size that its texts need", "--max-batch-size=int:4"),
    ignored("the device's own kernel is used where there is one; the result is the same", "--use-triton-swiglu-limit"),
)
