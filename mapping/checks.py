"""Rules about flags and keys of files as given: refused flags and values, flags that are required, need others or
exclude them; and a few about what was given beside the configuration that was built of it."""

from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from mapping.derive.fields import fully_sharded_stage
from mapping.derive.values import field_values
from mapping.derive.vocabulary import tokenizer_findings
from mapping.flags import REFUSED, Flag
from mapping.flags.combinations import EXCLUSIVE, NEEDS, REQUIRED
from mapping.flags.notations import parts, pipeline_layout
from mapping.flags.with_option.training import STRATEGIES
from mapping.given import Given
from parallel_core.config import AllConfig
from parallel_core.config.base import Unknown, judge
from parallel_core.config.optimizer import BY_ANY_NAME, SHARING_NAMES
from parallel_core.config.tree import path_of
from parallel_core.costs import StagePlan
from parallel_core.findings import ConfigError, Finding, Setting, shown
from parallel_core.no_effect.training import IN_FLOAT32
from parallel_core.planner import find_device


def _refuses(row: Flag, part: Any) -> bool:
    return isinstance(part, str | int | float) and part in row.refuses


def _is_refused(entry: Given) -> bool:
    return entry.row.status == REFUSED and not entry.row.asks_for_nothing(entry.value)


def _refusal(entry: Given, value: Any, reason: str) -> Finding:
    rule, _, fix = reason.partition("; ")
    return Finding(entry.name, value, rule, fix, entry.source)


def refusals(args: Any, given: Sequence[Given]) -> Iterator[Finding]:
    for entry in given:
        if _is_refused(entry):
            yield _refusal(entry, entry.words, entry.row.reason)
        for part in parts(entry.value):
            if _refuses(entry.row, part):
                yield _refusal(entry, part, entry.row.refuses[part])


def required(args: Any) -> Iterator[Finding]:
    """A finding for each tuple in `REQUIRED` whose flags' arguments are all None: a training needs one flag of each
    tuple."""
    for flags in REQUIRED:
        if all(_attribute(args, flag) is None for flag in flags):
            yield Finding(" or ".join(flags), None, "must be given", "add it")


def training_has_a_length(args: Any, given: Sequence[Given]) -> Iterator[Finding]:
    for entry in given:
        if entry.row.dest == "train_iters" and entry.value == 0 and not args.skip_train:
            yield Finding(entry.name, 0, "must be at least 1", "raise it", entry.source)


def weight_decay_has_both_ends(args: Any, given: Sequence[Given]) -> Iterator[Finding]:
    if args.weight_decay_incr_style != "constant" and None in (args.start_weight_decay, args.end_weight_decay):
        rule = "needs --start-weight-decay and --end-weight-decay"
        yield Finding("--weight-decay-incr-style", args.weight_decay_incr_style, rule, "add them")


def exclusions(args: Any, given: Sequence[Given]) -> Iterator[Finding]:
    entries = {entry.row.name: entry for entry in given if not entry.says_nothing}
    for flags in EXCLUSIVE:
        present = [flag for flag in flags if flag in entries]
        if len(present) > 1:
            earlier, later = entries[present[0]], entries[present[1]]
            rule = f"does not go with {shown(earlier.name, earlier.words)}"
            yield Finding(later.name, later.words, rule, "leave one out", later.source)


def needs(args: Any, given: Sequence[Given]) -> Iterator[Finding]:
    names = {entry.row.name for entry in given if not entry.says_nothing}
    for flag, others in NEEDS.items():
        if flag in names and not any(_is_on(args, other) for other in others):
            yield Finding(flag, None, f"needs {' or '.join(others)}", f"add it or leave {flag} out")


def _attribute(args: Any, flag: str) -> Any:
    return getattr(args, flag.removeprefix("--").replace("-", "_"), None)


def _is_on(args: Any, flag: str) -> bool:
    value = _attribute(args, flag)
    return value is not None and value is not False


def latent_attention_has_a_rank(args: Any, given: Sequence[Given]) -> Iterator[Finding]:
    names = {entry.row.name for entry in given}
    for flag in ("--multi-latent-attention", "--multi-head-latent-attention"):
        if _is_on(args, flag) and flag in names and "--kv-lora-rank" not in names:
            yield Finding(flag, None, "needs --kv-lora-rank, the width of the latent", "add it")


def position_flags_agree(args: Any, given: Sequence[Given]) -> Iterator[Finding]:
    rotary = args.use_rotary_position_embeddings or args.position_embedding_type in ("rope", "yarn")
    rotary = rotary or args.multi_latent_attention or args.multi_head_latent_attention
    names = {entry.row.name for entry in given}
    if not args.add_position_embedding and not rotary:
        rule = "says no more than which positions there are not"
        yield Finding("--no-position-embedding", None, rule, "use --position-embedding-type none")
    for flag in ("--use-fused-rotary-pos-emb", "--rotary-seq-len-interpolation-factor"):
        if flag in names and not rotary:
            yield Finding(flag, None, "needs --position-embedding-type rope", f"add it or leave {flag} out")


def fused_norm_is_rms(args: Any, given: Sequence[Given]) -> Iterator[Finding]:
    if args.use_fused_rmsnorm and args.normalization != "RMSNorm":
        rule = f"needs --normalization RMSNorm, not {args.normalization}"
        yield Finding("--use-fused-rmsnorm", None, rule, "change one of them")


def data_is_named_once(args: Any, given: Sequence[Given]) -> Iterator[Finding]:
    """A finding where --train-data-path names other data than --data-path, if both are given."""
    for entry in given:
        if (
            entry.row.dest == "train_data_path"
            and args.data_path
            and args.train_data_path not in (None, args.data_path)
        ):
            rule = f"does not go with {shown('--data-path', ' '.join(args.data_path))}"
            yield Finding(entry.name, entry.words, rule, "leave one out", entry.source)


def older_experts_are_switches(args: Any, given: Sequence[Given]) -> Iterator[Finding]:
    """A finding where --use-legacy-models is given for a model with several experts, without the flags for what those
    experts are: each token goes to sinkhorn's best expert, and there are no biases."""
    if not args.use_legacy_models or (args.num_experts or 1) == 1:
        return
    is_switch = parts(args.moe_router_load_balancing_type) == ["sinkhorn"] and args.moe_router_topk == 1
    if not is_switch or args.add_bias_linear:
        missing = "--moe-router-load-balancing-type sinkhorn --moe-router-topk 1 --disable-bias-linear"
        rule = f"has experts that are routed as by {missing}, whatever other flags say"
        yield Finding("--use-legacy-models", None, rule, "add these or leave it out")


def tokenizer_has_its_files(args: Any, given: Sequence[Given]) -> Iterator[Finding]:
    return tokenizer_findings(args)


def context_sizes_multiply(args: Any, given: Sequence[Given]) -> Iterator[Finding]:
    sizes = args.hierarchical_context_parallel_sizes
    if sizes is not None and (len(sizes) != 2 or sizes[0] * sizes[1] != args.context_parallel_size):
        given_sizes = Setting("--hierarchical-context-parallel-sizes", " ".join(map(str, sizes)))
        product = f"--context-parallel-size {args.context_parallel_size}"
        yield given_sizes.breaks(f"must be two numbers whose product is {product}", "change one of them")


def tensor_parallel_dimensions_multiply(args: Any, given: Sequence[Given]) -> Iterator[Finding]:
    size = args.tensor_model_parallel_size
    if args.tp_2d and args.tp_x * args.tp_y != size:
        rule = f"times --tp-y {args.tp_y} must be --tensor-model-parallel-size {size}"
        yield Finding("--tp-x", args.tp_x, rule, "change one of them")


def an_optimizer_may_share_its_states(args: Any, given: Sequence[Given]) -> Iterator[Finding]:
    if args.optimizer not in SHARING_NAMES:
        return
    other = f"use --optimizer {BY_ANY_NAME[args.optimizer].name}, or"
    rule = f"does not go with --optimizer {args.optimizer}, which shares the optimizer's states out (--zero-stage 1)"
    if fully_sharded_stage(args) == 0:
        yield Finding("--data-parallel-sharding-strategy", STRATEGIES[0], rule, f"{other} optim")
        return
    for entry in given:
        if entry.row.dest in ("zero_stage", "use_distributed_optimizer") and entry.value in (0, False):
            yield Finding(entry.name, entry.words, rule, f"{other} leave it out", entry.source)
            return


def pipeline_layout_fits(args: Any, given: Sequence[Given]) -> Iterator[Finding]:
    if args.pipeline_model_parallel_layout is None:
        return
    try:
        stages = pipeline_layout(args.pipeline_model_parallel_layout)
    except ValueError as error:
        yield Finding("--pipeline-model-parallel-layout", error, "must be stages such as Et*3|(tt|)*5mL", "change it")
        return
    layout, size = Setting("--pipeline-model-parallel-layout", "|".join(stages)), args.pipeline_model_parallel_size
    predicted, heads = args.mtp_num_layers or args.num_nextn_predict_layers or 0, "".join(stages).count("m")
    if size >= 1 and len(stages) % size:
        rule = f"has {len(stages)} virtual stages, must have a multiple of --pipeline-model-parallel-size {size}"
        yield layout.breaks(rule, "change one of them")
    if heads != stages[-1].count("m"):
        yield layout.breaks("multi-token prediction is on the last stage, where the loss is", "put m before L")
    if heads != predicted:
        rule = f"has m {heads} times, must have it --mtp-num-layers {predicted} times"
        yield layout.breaks(rule, "change one of them")


def pending_backwards_have_an_order(args: Any, given: Sequence[Given]) -> Iterator[Finding]:
    stages, pending = args.pipeline_model_parallel_size, args.zero_bubble_max_pending_backward
    if args.enable_zero_bubble and pending not in ("auto", str(stages), str(2 * stages)):
        rule = f"must be once or twice --pipeline-model-parallel-size {stages}, or auto"
        yield Finding("--zero-bubble-max-pending-backward", pending, rule, "change one of them")


def plan_device_is_known(args: Any, given: Sequence[Given]) -> Iterator[Finding]:
    if named := _attribute(args, "--plan-device"):
        try:
            find_device(named)
        except ConfigError as error:
            first = error.findings[0]
            rule = first.rule if first.flag == "--device" else f"is no device: {first}"
            yield Finding("--plan-device", named, rule, first.fix)


Rule = Callable[[Any, Sequence[Given]], Iterator[Finding]]
RULES: tuple[Rule, ...] = (
    refusals,
    training_has_a_length,
    weight_decay_has_both_ends,
    exclusions,
    needs,
    position_flags_agree,
    fused_norm_is_rms,
    latent_attention_has_a_rank,
    data_is_named_once,
    older_experts_are_switches,
    tokenizer_has_its_files,
    context_sizes_multiply,
    tensor_parallel_dimensions_multiply,
    an_optimizer_may_share_its_states,
    pipeline_layout_fits,
    pending_backwards_have_an_order,
    plan_device_is_known,
)


def check_given(args: Any, given: Sequence[Given]) -> list[Finding]:
    """Findings of all `RULES`. args: the arguments; given: the flags that were given, and the keys of files that stand
    for a flag."""
    return list(judge([partial(rule, args) for rule in RULES], given))


def replicas_are_averaged(given: Sequence[Given], config: AllConfig) -> Iterator[Finding]:
    """A finding for the key of a file by which gradients of several replicas would be summed, not averaged."""
    replicas = config.parallel_config.data_parallel_size
    for entry in given:
        if entry.name.endswith("zero_config.grad_allreduce_op") and entry.value == "sum" and replicas > 1:
            rule = f"the gradients of {replicas} replicas are averaged, as their losses are"
            yield Finding(entry.name, "sum", rule, "write mean", entry.source)


def demands_are_met(given: Sequence[Given], config: AllConfig) -> Iterator[Finding]:
    """Findings for keys of a file that need another config field at a value that it does not have (`Given.demand`)."""
    for entry in given:
        if entry.demand is not None:
            has = attrgetter(path_of(entry.demand.field))(config) or 0
            if not entry.demand.is_met(has):
                yield Finding(entry.name, entry.value, entry.demand.rule.format(has), entry.demand.fix, entry.source)


def scales_have_a_type(typed: Sequence[Given], config: AllConfig) -> Iterator[Finding]:
    """Findings for flags about a loss scale where training is in float32, which has none. A flag at 0, at its default,
    or --loss-scale-window at Megatron's, 1000, passes. typed: the flags, and arguments that a script changed; not keys
    of files, which may belong to a part of the file that is switched off."""
    if not IN_FLOAT32.is_idle(config):
        return
    for entry in typed:
        of_megatron = 1000 if entry.row.name == "--loss-scale-window" else None
        if entry.target in IN_FLOAT32.paths and entry.value not in (0, entry.row.default, of_megatron):
            value = None if isinstance(entry.value, bool) else entry.value
            yield Finding(entry.name, value, "needs --fp16 or --bf16", f"add one or leave {entry.name} out")


def spared_parameters_are_there(config: AllConfig) -> Iterator[Finding]:
    """One finding with the names of --no-weight-decay-params that are the end of no parameter's name, if there are
    such."""
    ends = config.optimizer_config.no_weight_decay_params or []
    stages = range(config.parallel_config.pipeline_model_parallel_size if ends else 0)
    names = [spec.name for stage in stages for spec in StagePlan(config, stage).parameters]
    missing = [end for end in ends if not any(name.endswith(end) for name in names)]
    if missing:
        rule, fix = "no parameter's name ends so", f"give ends of names such as {names[-1]}"
        yield Finding("--no-weight-decay-params", " ".join(missing), rule, fix)


def instead_of_refused(given: Sequence[Given]) -> dict[str, Any]:
    """Attribute -> what stands in for the value of a refused flag, and for a refused value of another flag, so that no
    further finding follows from it: `Unknown` for a flag that fills a field, else the flag's default."""
    refused = [e.row for e in given if e.row.status == REFUSED or any(_refuses(e.row, v) for v in parts(e.value))]
    return {row.dest: Unknown() if row.target else row.default for row in refused}


def contradictions(args: Any, given: Sequence[Given]) -> Iterator[Finding]:
    """Findings for contradicting flags: a flag that others of the same field overrule, so that every field is the same
    with and without it, although without those others its field would have another value.

    Flags that say the same twice agree, and a flag may say what becomes of it beside others (`Flag.idle`).
    """
    for entries in _of_one_field(given):
        for entry in entries:
            others = [other for other in entries if other is not entry]
            if _is_replaced(args, entry, others) and not entry.row.why_idle(args):
                other = next((other for other in others if not _is_replaced(args, other, [entry])), others[0])
                rule = f"contradicts {shown(other.name, other.words)}"
                yield Finding(entry.name, entry.words, rule, "leave one of them out", entry.source)


def _of_one_field(given: Sequence[Given]) -> Iterator[list[Given]]:
    """For each config field that several arguments fill with values other than their defaults, the last value of
    each."""
    by_target: dict[str, dict[str, Given]] = defaultdict(dict)
    for entry in given:
        if entry.row.target and not (entry.says_nothing or entry.row.refines):
            by_target[entry.row.target][entry.row.dest] = entry
    return (list(entries.values()) for entries in by_target.values() if len(entries) > 1)


def _is_replaced(args: Any, entry: Given, others: Sequence[Given]) -> bool:
    whole, alone = _fields(args), _fields(args, *others)
    target = entry.row.target
    return whole.get(target) != alone.get(target) and whole == _fields(args, entry)


def _fields(args: Any, *without: Given) -> dict[str, Any]:
    """Path -> value of the config fields when the arguments `without` are at their defaults."""
    changed = Namespace()
    vars(changed).update(vars(args) | {entry.row.dest: entry.row.default for entry in without})
    fields = field_values(changed, look_at_files=False)
    return {path: value for path, value in fields.items() if not isinstance(value, Unknown)}
