"""Flags of optimizer and schedule."""

from mapping.flags.acting.build import Acting, refusing, value

ACTING = Acting(
    {
        "--optimizer": refusing("there are only adam and sgd", "muon", "dist_muon", "lion", "soap", "adaptive_muon"),
        "--lr": {"default": None},
        "--adam-beta1": {"type": float, "default": 0.9},
        "--override-opt_param-scheduler": {"aliases": ("--override-opt-param-scheduler",)},
        "--use-checkpoint-opt_param-scheduler": {"aliases": ("--use-checkpoint-opt-param-scheduler",)},
    },
    (value("--adam-beta2", float, "betas", "Decay rate of Adam's second moment.", default=0.999),),
)
