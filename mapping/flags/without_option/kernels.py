"""Flags that are ignored: operators that compute the same, such as fused ones, and CUDA graphs."""

from mapping.flags.flag import group, ignored

FLAGS = group(
    "Kernels: fused operators and CUDA graphs",
    ignored(
        "there is no Transformer Engine here; its switches have nothing to act on",
        """
        --tp-comm-overlap --no-tp-comm-bulk-wgrad|--disable-tp-comm-bulk-wgrad=off
        --no-tp-comm-bulk-dgrad|--disable-tp-comm-bulk-dgrad=off
        --no-tp-comm-overlap-ag|--disable-tp-comm-overlap-ag=off
        --no-tp-comm-overlap-rs|--disable-tp-comm-overlap-rs=off --tp-comm-overlap-rs-dgrad
        --no-tp-comm-split-ag|--disable-tp-comm-split-ag=off --no-tp-comm-split-rs|--disable-tp-comm-split-rs=off
        --tp-comm-bootstrap-backend=str{nccl,mpi,gloo}:nccl --use-transformer-engine-op-fuser --tp-comm-overlap-cfg=str
        --te-rng-tracker
        """,
    ),
    ignored(
        "the device's own kernel is used where there is one; the result is the same (`plan` reads it)",
        "--attention-backend=str{flash,fused,unfused,local,auto}:auto",
    ),
    ignored(
        "the device's own kernel is used where there is one; the result is the same",
        """
        --cross-entropy-loss-fusion --cross-entropy-fusion-impl=str{native,te}:native
        --flash-attention-version=int{2,3,4}
        --use-fused-weighted-squared-relu --fused-residual-rmsnorm --use-grouped-gemm-for-dense-mlp
        --use-te-activation-func --no-gradient-reduce-div-fusion=off --mla-down-proj-fusion
        --jit-compile --use-fusion-attn-v2 --gemm-gradient-accumulation-fusion --use-fused-ring-attention-update
        --skip-bias-add=off --apply-rope-no-in-complex --mla-fa-without-pad
        --mla-fa-divide-qk --lora-fusion --use-fused-mlp --use-te
        """,
    ),
    ignored(
        "logits and losses are computed whole, not in pieces: only memory changes, not the result",
        """
        --loss-compute-mode=str{default,chunk}:default --loss-chunk-size=int:1024 --output-layer-slice-num=int:1
        """,
    ),
    ignored(
        "latent attention computes the same function of the same weights, by its own order of products",
        "--enable-mla-absorb --mla-mm-split",
    ),
    ignored("no function is compiled here: operators are launched one by one", "--disable-jit-fuser"),
    ignored(
        "there are no CUDA graphs here",
        """
        --enable-cuda-graph --cuda-graph-warmup-steps=int:3 --external-cuda-graph
        --cuda-graph-impl=str{none,local,transformer_engine,full_iteration}:none --optimizer-cuda-graph
        --cuda-graph-scope>cuda_graph_scope_deprecated=str+ --cuda-graph-modules=str+:[]
        """,
    ),
    ignored(
        "fused operators and separate ones give the same result; the device's own operators are used",
        """
        --no-gradient-accumulation-fusion=off --no-persist-layer-norm=off --no-bias-swiglu-fusion=off
        --no-bias-dropout-fusion=off
        """,
    ),
)
