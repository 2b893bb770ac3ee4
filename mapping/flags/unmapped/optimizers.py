"""Flags without effect: other optimizers."""

from mapping.flags.flag import group, refused

FLAGS = group(
    "Optimizers: other optimizers",
    refused(
        "there are only adam and sgd; leave it out",
        """
        --muon-momentum=float:0.9 --muon-no-split-qkv>muon_split_qkv=off --muon-nesterov
        --muon-scale-mode=str{spectral,unit_rms_norm,shape_scaling}:spectral
        --muon-fp32-matmul-prec=str{low,medium,high}:medium --muon-coefficient-type=str:quintic
        --muon-num-ns-steps=int:5 --muon-tp-mode=str{blockwise,duplicated,distributed}:duplicated --muon-use-syrk
        --muon-extra-scale-factor=float:1.0 --muon-scalar-optimizer=str{adam,lion}:adam --lion-beta1=float:0.95
        --lion-beta2=float:0.98 --no-use-layer-wise-param-layout=off --head-lr-mult=float:1.0 --muon-use-nesterov
        --use-ema --ema-decay=float:0.9999 --virtual-optimizer=str+
        """,
    ),
    refused(
        "weight decay spares norms and biases, as Megatron by default; leave it out or use --apply-wd-to-qk-layernorm",
        "--no-weight-decay-cond-type=str{apply_wd_to_qk_layernorm}",
    ),
    refused(
        "the batch grows by --rampup-batch-size; use that",
        """
        --decrease-batch-size-if-needed --phase-transition-iterations=str
        """,
    ),
)
