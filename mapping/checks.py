"""Rules about what was typed: refused flags and values, flags that are required, need others or exclude them.

Rules about the values themselves belong to the config objects (`parallel_core/config/rules/`), so that they hold
however a config was made.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mapping.derived import fully_sharded_stage
from mapping.flags import REFUSED, Flag
from mapping.flags.stages import pipeline_layout
from mapping.parser import Given
from parallel_core.config.base import Unknown, judge

REQUIRED = (("--micro-batch-size",), ("--lr",), ("--max-position-embeddings",), ("--train-iters", "--train-samples"))
"""Of each tuple one flag must be given; what the model cannot be built without is checked there."""

EXCLUSIVE = (
    ("--train-iters", "--train-samples"),
    ("--lr-decay-iters", "--lr-decay-samples"),
    ("--lr-warmup-fraction", "--lr-warmup-iters", "--lr-warmup-samples"),
    ("--num-layers", "--encoder-num-layers"),
    ("--seq-length", "--encoder-seq-length"),
    ("--swiglu", "--squared-relu", "--geglu", "--gelu-tanh"),
    ("--num-layers-per-virtual-pipeline-stage", "--num-virtual-stages-per-pipeline-rank"),
    ("--data-path", "--train-data-path"),
    ("--data-path", "--mock-data"),
    ("--save-retain-interval", "--keep-checkpoint-max"),
    ("--num-layer-list", "--pipeline-model-parallel-layout"),
    ("--pipeline-num-transformer-layers", "--pipeline-model-parallel-layout"),
    ("--use-torch-fsdp2", "--use-distributed-optimizer"),
    ("--use-torch-fsdp2", "--use-megatron-fsdp", "--use-custom-fsdp"),
    ("--n-shared-experts", "--moe-shared-expert-intermediate-size", "--shared-moe-ffn-hidden-size"),
)
"""Flags of which at most one may be given, each with a value that says something."""

NEEDS = {
    "--save": ("--save-interval",),
    "--lr-decay-samples": ("--train-samples",),
    "--lr-warmup-samples": ("--train-samples",),
    "--lr-wsd-decay-samples": ("--train-samples",),
    "--rampup-batch-size": ("--train-samples",),
    "--lr-decay-iters": ("--train-iters",),
    "--lr-warmup-iters": ("--train-iters",),
    "--lr-wsd-decay-iters": ("--train-iters",),
    **dict.fromkeys(
        (
            "--first-k-dense-replace",
            "--moe-aux-loss-coeff",
            "--moe-comm-aux-loss-coeff",
            "--moe-device-level-aux-loss-coeff",
            "--moe-expert-capacity-factor",
            "--moe-ffn-hidden-size",
            "--moe-layer-freq",
            "--moe-router-group-topk",
            "--moe-router-num-groups",
            "--moe-router-topk",
            "--moe-shared-expert-intermediate-size",
            "--moe-z-loss-coeff",
        ),
        ("--num-experts",),
    ),
    "--start-weight-decay": ("--end-weight-decay",),
    "--end-weight-decay": ("--start-weight-decay",),
    "--merge-file": ("--vocab-file",),
    "--n-shared-experts": ("--moe-ffn-hidden-size", "--moe-intermediate-size", "--ffn-hidden-size"),
    "--use-fused-swiglu": ("--swiglu",),
    "--square-alibi-mask": ("--fill-neg-inf",),
    "--fill-neg-inf": ("--square-alibi-mask",),
    "--data-parallel-sharding-strategy": ("--use-megatron-fsdp", "--use-custom-fsdp"),
    "--enable-shared-expert": ("--shared-moe-ffn-hidden-size",),
    "--shared-moe-ffn-hidden-size": ("--enable-shared-expert",),
}
"""A flag -> flags of which one must come with it."""


def _parts(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _refuses(row: Flag, part: Any) -> bool:
    return isinstance(part, str | int | float) and part in row.refuses


def refusals(args: Namespace, given: Sequence[Given]) -> Iterator[str]:
    for name, row, value in given:
        if row.status == REFUSED and value != row.default:
            yield f"{_typed(name, value)}: {row.reason}"
        for part in _parts(value):
            if _refuses(row, part):
                yield f"{name} {part}: {row.refuses[part]}"


def required(args: Namespace, given: Sequence[Given]) -> Iterator[str]:
    if args.yaml_cfg is not None:
        return  # a file describes a model; how long to train it may be left open
    for flags in REQUIRED:
        if all(_attribute(args, flag) is None for flag in flags):
            yield f"{' or '.join(flags)}: must be given"


def training_has_a_length(args: Namespace, given: Sequence[Given]) -> Iterator[str]:
    if args.train_iters == 0 and not args.skip_train:
        yield "--train-iters 0: must be at least 1; raise it"


def weight_decay_has_both_ends(args: Namespace, given: Sequence[Given]) -> Iterator[str]:
    if args.weight_decay_incr_style != "constant" and None in (args.start_weight_decay, args.end_weight_decay):
        yield (
            f"--weight-decay-incr-style {args.weight_decay_incr_style}: needs --start-weight-decay and "
            "--end-weight-decay; add them"
        )


def exclusions(args: Namespace, given: Sequence[Given]) -> Iterator[str]:
    values = {entry.row.name: entry.value for entry in given if not _says_nothing(entry)}
    for flags in EXCLUSIVE:
        present = [flag for flag in flags if flag in values]
        if len(present) > 1:
            later, earlier = present[1], present[0]
            yield f"{_typed(later, values[later])}: does not go with {_typed(earlier, values[earlier])}; leave one out"


def _says_nothing(entry: Given) -> bool:
    """A value such as `--lr-warmup-iters 0` asks for nothing."""
    return entry.value is None or (entry.row.type is not None and entry.value == entry.row.default)


def _typed(flag: str, value: Any) -> str:
    return flag if isinstance(value, bool) else f"{flag} {' '.join(map(str, _parts(value)))}"


def needs(args: Namespace, given: Sequence[Given]) -> Iterator[str]:
    names = {entry.row.name for entry in given if not _says_nothing(entry)}
    for flag, others in NEEDS.items():
        if flag in names and not any(_is_on(args, other) for other in others):
            yield f"{flag}: needs {' or '.join(others)}; add it or leave {flag} out"


def _attribute(args: Namespace, flag: str) -> Any:
    return getattr(args, flag.removeprefix("--").replace("-", "_"), None)


def _is_on(args: Namespace, flag: str) -> bool:
    value = _attribute(args, flag)
    return value is not None and value is not False


def position_flags_agree(args: Namespace, given: Sequence[Given]) -> Iterator[str]:
    rotary = args.use_rotary_position_embeddings or args.position_embedding_type in ("rope", "yarn")
    names = {entry.name for entry in given}
    if not args.add_position_embedding and not rotary:
        yield "--no-position-embedding: use --position-embedding-type none"
    for flag in ("--use-fused-rotary-pos-emb", "--rotary-seq-len-interpolation-factor"):
        if flag in names and not rotary:
            yield f"{flag}: needs --position-embedding-type rope; add it or leave {flag} out"


def fused_norm_is_rms(args: Namespace, given: Sequence[Given]) -> Iterator[str]:
    if args.use_fused_rmsnorm and args.normalization != "RMSNorm":
        yield f"--use-fused-rmsnorm: needs --normalization RMSNorm, not {args.normalization}; change one of them"


def tokenizer_has_its_files(args: Namespace, given: Sequence[Given]) -> Iterator[str]:
    kind, path = args.tokenizer_type, args.tokenizer_model or args.tokenizer_name_or_path
    if kind == "GPT2BPETokenizer" and not (args.vocab_file and args.merge_file):
        yield "--tokenizer-type GPT2BPETokenizer: needs --vocab-file and --merge-file; add them"
    elif kind == "NullTokenizer" and args.vocab_size is None:
        yield "--tokenizer-type NullTokenizer: needs --vocab-size; add it"
    elif (
        kind
        in (
            "HuggingFaceTokenizer",
            "PretrainedFromHF",
            "Llama2Tokenizer",
            "GPTSentencePieceTokenizer",
            "SentencePieceTokenizer",
            "TikTokenizer",
        )
        and path is None
    ):
        yield f"--tokenizer-type {kind}: needs --tokenizer-model; add it"


def context_sizes_multiply(args: Namespace, given: Sequence[Given]) -> Iterator[str]:
    sizes = args.hierarchical_context_parallel_sizes
    if sizes is not None and (len(sizes) != 2 or sizes[0] * sizes[1] != args.context_parallel_size):
        yield (
            f"--hierarchical-context-parallel-sizes {' '.join(map(str, sizes))}: must be two numbers whose product "
            f"is --context-parallel-size {args.context_parallel_size}; change one of them"
        )


def sharding_agrees(args: Namespace, given: Sequence[Given]) -> Iterator[str]:
    stage, asked = fully_sharded_stage(args), args.zero_stage
    if None not in (stage, asked) and stage != asked:
        yield (
            f"--zero-stage {asked}: fully sharded data parallelism (--use-megatron-fsdp, --use-torch-fsdp2) is stage "
            f"{stage} here; make them agree or leave one out"
        )


def pipeline_layout_fits(args: Namespace, given: Sequence[Given]) -> Iterator[str]:
    if args.pipeline_model_parallel_layout is None:
        return
    try:
        stages = pipeline_layout(args.pipeline_model_parallel_layout)
    except ValueError as error:
        yield f"--pipeline-model-parallel-layout {error}: must be stages such as Et*3|(tt|)*5mL; change it"
        return
    flag, size = f"--pipeline-model-parallel-layout {'|'.join(stages)}", args.pipeline_model_parallel_size
    predicted, heads = args.mtp_num_layers or args.num_nextn_predict_layers or 0, "".join(stages).count("m")
    if size >= 1 and len(stages) % size:
        yield (
            f"{flag}: has {len(stages)} virtual stages, must have a multiple of --pipeline-model-parallel-size {size}; "
            "change one of them"
        )
    if heads != stages[-1].count("m"):
        yield f"{flag}: further tokens are predicted by the last stage, where the loss is; put m before L"
    if heads != predicted:
        yield f"{flag}: has m {heads} times, must have it --mtp-num-layers {predicted} times; change one of them"


Rule = Callable[[Namespace, Sequence[Given]], Iterator[str]]
RULES: tuple[Rule, ...] = (
    refusals,
    required,
    training_has_a_length,
    weight_decay_has_both_ends,
    exclusions,
    needs,
    position_flags_agree,
    fused_norm_is_rms,
    tokenizer_has_its_files,
    context_sizes_multiply,
    sharding_agrees,
    pipeline_layout_fits,
)


def check_given(args: Namespace, given: Sequence[Given]) -> list[str]:
    """What the rules say of the flags that were given."""
    return list(judge([lambda _, rule=rule: rule(args, given) for rule in RULES], None))


def forget_refused(args: Namespace, given: Sequence[Given]) -> None:
    """Make refused values unknown, so that nothing is said of them twice, nor of what would follow from them."""
    for _, row, value in given:
        if row.status == REFUSED or any(_refuses(row, part) for part in _parts(value)):
            setattr(args, row.dest, Unknown() if row.target else row.default)
