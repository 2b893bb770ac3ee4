"""Flags of optimizer, schedule, low-rank adapters and mu-P: the differences of their rows from the options that they
fill, and further flags."""

from mapping.flags.flag import value
from mapping.flags.with_option.build import WITHOUT_MUP, Acting, refusing
from parallel_core.config.optimizer import RULES

_FP8 = "8-bit optimizer states are out of scope; use bf16"
_FP16 = "averages of small gradients or squares vanish in float16 without a scale for each parameter; use bf16"
_STATES = {"fp16": _FP16, "fp8": _FP8}

_NAMES = ("lion", "soap", "adaptive_muon", "lamb")
"""Further names of --optimizer, in Megatron and MindSpeed, that are refused."""

ACTING = Acting(
    {
        "--optimizer": refusing(
            f"this optimizer is not there; use {', '.join(RULES)}", *(name for name in _NAMES if name not in RULES)
        ),
        "--lora-r": {"default": 16},
        "--adam-beta1": {"type": float, "default": 0.9, "help": "Decay rate of Adam's first moment."},
        "--exp-avg-dtype": {"refuses": _STATES},
        "--exp-avg-sq-dtype": {"refuses": _STATES},
        "--muon-nesterov": {"aliases": ("--muon-use-nesterov",)},
        "--muon-no-split-qkv": {"dest": "muon_split_qkv"},
        "--muon-fp32-matmul-prec": refusing("torch has no precision of that name either; use medium or high", "low"),
        "--mup-base-hidden-size": {
            "type": int,
            "default": None,
            "help": "Hidden size of the model that given rates and initial values are for; this one's if not given.",
            "idle": WITHOUT_MUP,
        },
        "--override-opt_param-scheduler": {"aliases": ("--override-opt-param-scheduler",)},
        "--use-checkpoint-opt_param-scheduler": {"aliases": ("--use-checkpoint-opt-param-scheduler",)},
    },
    (
        value("--o2-optimizer", "exp_avg_dtype", "Keep both of Adam's moments in bfloat16."),
        value("--adam-beta2=float:0.999", "betas", "Decay rate of Adam's second moment.", completes=("--adam-beta1",)),
        value(
            "--main-grads-dtype=str{fp32,bf16}:fp32",
            "grad_reduce_in_bf16",
            "Type in which the gradients of bfloat16 weights are added up and reduced.",
        ),
        value(
            "--no-weight-decay-cond-type=str{apply_wd_to_qk_layernorm}",
            "apply_wd_to_qk_layernorm",
            "The older form of --apply-wd-to-qk-layernorm, with one value, the flag's name in underscores.",
        ),
    ),
)
