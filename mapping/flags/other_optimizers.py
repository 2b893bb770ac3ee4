"""Flags: other optimizers."""

from mapping.flags.flag import group, off, refused, switch, value, values

FLAGS = group(
    "other optimizers",
    *refused(
        "there are only adam and sgd; leave it out",
        value("--muon-momentum", float, 0.9),
        off("--muon-no-split-qkv", "muon_split_qkv"),
        switch("--muon-nesterov"),
        value("--muon-scale-mode", str, "spectral", choices=("spectral", "unit_rms_norm", "shape_scaling")),
        value("--muon-fp32-matmul-prec", str, "medium", choices=("low", "medium", "high")),
        value("--muon-coefficient-type", str, "quintic"),
        value("--muon-num-ns-steps", int, 5),
        value("--muon-tp-mode", str, "duplicated", choices=("blockwise", "duplicated", "distributed")),
        switch("--muon-use-syrk"),
        value("--muon-extra-scale-factor", float, 1.0),
        value("--muon-scalar-optimizer", str, "adam", choices=("adam", "lion")),
        value("--lion-beta1", float, 0.95),
        value("--lion-beta2", float, 0.98),
        off("--no-use-layer-wise-param-layout", "use_layer_wise_param_layout"),
        value("--head-lr-mult", float, 1.0),
        switch("--muon-use-nesterov"),
        switch("--use-ema"),
        value("--ema-decay", float, 0.9999),
        values("--virtual-optimizer", str),
    ),
    *refused(
        "weight decay spares norms and biases, as Megatron by default; leave it out or use --apply-wd-to-qk-layernorm",
        value("--no-weight-decay-cond-type", str, choices=("apply_wd_to_qk_layernorm",)),
    ),
    *refused(
        "the batch grows by --rampup-batch-size; use that",
        value("--step-batch-size-schedule", str),
        switch("--decrease-batch-size-if-needed"),
        value("--phase-transition-iterations", str),
    ),
)
