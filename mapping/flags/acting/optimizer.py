"""Flags of optimizer and schedule."""

from mapping.flags.acting.build import Acting, refusing, switch, value

ACTING = Acting(
    {
        "--optimizer": refusing("there are only adam and sgd", "muon", "dist_muon", "lion", "soap", "adaptive_muon"),
        "--lr": {"default": None},
        "--adam-beta1": {"type": float, "default": 0.9},
        "--exp-avg-dtype": refusing("8-bit optimizer states are out of scope; use bf16", "fp8"),
        "--exp-avg-sq-dtype": refusing("8-bit optimizer states are out of scope; use bf16", "fp8"),
        "--override-opt_param-scheduler": {"aliases": ("--override-opt-param-scheduler",)},
        "--use-checkpoint-opt_param-scheduler": {"aliases": ("--use-checkpoint-opt-param-scheduler",)},
    },
    (
        switch("--o2-optimizer", "exp_avg_dtype", "Keep both of Adam's moments in bfloat16.", dest="o2_optimizer"),
        value("--adam-beta2", float, "betas", "Decay rate of Adam's second moment.", default=0.999),
    ),
)
