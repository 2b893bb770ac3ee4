"""Flags of data, batch sizes, tokenizer and fine-tuning on conversations: the differences of their rows from the
options that they fill, and further flags."""

from mapping.flags.flag import value
from mapping.flags.notations import batch_sizes, boolean
from mapping.flags.with_option.build import Acting, as_switch, read_by, refusing, same
from parallel_core.data.tokenizers import TOKENIZERS

_REWARDED = ("dpo", "orm", "prm", "simpo", "ray_ppo", "ray_online_dpo", "ray_grpo", "trl_ppo")

INDEXED = ("MMAP", "LLama-Pretrain-Idxmap")
"""Values of --dataset for files of tokens."""

ACTING = Acting(
    {
        "--micro-batch-size": {"default": None, "aliases": ("--per_device_train_batch_size",)},
        "--micro-batch-num": {"aliases": ("--gradient_accumulation_steps", "--gradient-accumulation-steps")},
        "--rampup-batch-size": {"nargs": 3},
        "--step-batch-size-schedule": read_by(batch_sizes),
        **{f"--{part}data-path": {"nargs": "*"} for part in ("", "valid-", "test-")},
        "--train-data-path": {
            "nargs": "*",
            "idle": (
                lambda args: args.data_path and args.train_data_path == args.data_path,
                "--data-path names the same data and goes before it, as in Megatron",
            ),
        },
        "--dataloader-type": refusing("give pretrain() your own train_data_loader instead", "external"),
        "--tokenizer-type": refusing(
            "give the model's HuggingFace tokenizer by HuggingFaceTokenizer instead",
            "MultimodalTokenizer",
            "NullMultimodalTokenizer",
            also=tuple(TOKENIZERS),
        ),
        "--tokenizer-hf-include-special-tokens": {"default": None},
        "--tokenizer-special-tokens": {"dest": "special_tokens"},
        "--no-tokenizer-sentencepiece-ignore-extra-whitespaces": {
            "aliases": ("--disable-tokenizer-sentencepiece-ignore-extra-whitespaces",)
        },
        "--train-mode": {
            "type": str,
            "default": "pretrain",
            "choices": ("pretrain", "finetune"),
            "help": "pretrain: data files hold tokens alone; finetune: the labels behind each sequence's tokens, too.",
        },
        **as_switch("--no-pad-to-seq-lengths", "Pad samples to the longest of their batch instead of to --seq-length."),
        **as_switch("--no-shuffle", "Read conversations in their order."),
        "--dataset": {
            "also": INDEXED,
            "idle": (lambda args: args.dataset in INDEXED, "indexed files are read by --data-path"),
        },
        "--enable-thinking": read_by(boolean, default=None),
    },
    (
        same("--drop-remainder", "drop_remainder", stores=True),
        same(
            "--tiktoken-special-tokens",
            "tokenizer_special_tokens",
            "Megatron's older name of --tokenizer-special-tokens, for TikTokenizer.",
        ),
        same(
            "--tokenizer-hf-no-include-special-tokens",
            "tokenizer_hf_include_special_tokens",
            "Put no BOS or EOS around texts.",
            default=None,
            stores=False,
        ),
        same("--tokenizer-name-or-path", "tokenizer_model", "Directory of a HuggingFace tokenizer."),
        same(
            "--patch-tokenizer-type",
            "tokenizer_type",
            "Pai-Megatron-Patch's name of a family of tokenizers, such as LLamaTokenizer: whatever it is, the one "
            "in the directory of --tokenizer-model, or else of --load, is read.",
            idle=(
                lambda args: (
                    args.tokenizer_type and not (args.tokenizer_model or args.tokenizer_name_or_path or args.load)
                ),
                "there is no folder of a tokenizer (--load, --tokenizer-model); --tokenizer-type says which",
            ),
        ),
        value(
            f"--stage=str{{sft,{','.join(_REWARDED)}}}",
            "instruction.enabled",
            "sft: fine-tune on conversations.",
            refuses=dict.fromkeys(_REWARDED, "learning from preferences or rewards is out of scope; only sft is done"),
        ),
    ),
)
