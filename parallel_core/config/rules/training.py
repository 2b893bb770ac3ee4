"""Rules of batches, gradients, data and checkpoints."""

from __future__ import annotations

from collections.abc import Iterator

from parallel_core.batch_sizes import BatchSizes
from parallel_core.config.checkpoint import starts_a_name
from parallel_core.config.notations import parse_blend, split_shares
from parallel_core.config.sections import Sections
from parallel_core.findings import ConfigError, Finding
from parallel_core.sizes import instances_share_the_replicas


def batches_divide(config: Sections) -> Iterator[Finding]:
    data, copies = config.dataset_config, config.parallel_config.data_parallel_size
    samples = data.batch_size * copies
    if data.global_batch_size % samples:
        yield Finding(
            "--global-batch-size",
            data.global_batch_size,
            f"must be a multiple of --micro-batch-size {data.batch_size} x data-parallel size {copies} = {samples}",
            "change one of them",
        )
    elif data.micro_batch_num * samples != data.global_batch_size:
        yield Finding(
            "--global-batch-size",
            data.global_batch_size,
            f"differs from --micro-batch-num {data.micro_batch_num} x --micro-batch-size {data.batch_size} x "
            f"data-parallel size {copies}",
            "leave one of them out",
        )


def ramp_reaches_the_batch(config: Sections) -> Iterator[Finding]:
    data = config.dataset_config
    if data.rampup_batch_size is None:
        return
    if len(data.rampup_batch_size) != 3:
        rule = "needs three numbers: first size, increment, samples"
        yield Finding("--rampup-batch-size", data.rampup_batch_size, rule, "change it")
        return
    start, step, samples = data.rampup_batch_size
    flag = f"--rampup-batch-size {start} {step} {samples}"
    if start < 1 or step < 1 or samples < 0:
        yield Finding(flag, None, "start and increment must be at least 1, samples at least 0", "change them")
    elif data.global_batch_size < start or (data.global_batch_size - start) % step:
        yield Finding(
            flag,
            None,
            f"steps of {step} from {start} must reach --global-batch-size {data.global_batch_size}",
            "change one of them",
        )
    unit = data.batch_size * config.parallel_config.data_parallel_size
    if start % unit or step % unit:
        yield Finding(
            flag,
            None,
            f"start and increment must be multiples of --micro-batch-size {data.batch_size} x data-parallel size "
            f"{config.parallel_config.data_parallel_size}",
            "change one of them",
        )


def batches_step(config: Sections) -> Iterator[Finding]:
    data, flag = config.dataset_config, "--step-batch-size-schedule"
    schedule, unit = data.step_batch_size_schedule, data.batch_size * config.parallel_config.data_parallel_size
    if schedule is None:
        return
    if data.rampup_batch_size is not None:
        yield Finding("--rampup-batch-size", None, f"does not go with {flag}", "leave one of them out")
    sizes = BatchSizes.of(data, config.model_config.seq_length)
    if not sizes.is_sound:
        rule = "needs amounts that rise from 0, each with a size, the last of which is --global-batch-size"
    elif wrong := [size for size in sizes.sizes() if size % unit]:
        rule = f"sizes must be multiples of --micro-batch-size x data-parallel size = {unit}, not {wrong[0]}"
    else:
        return
    yield Finding(flag, schedule, rule, "change it")


def overlap_has_something_to_overlap(config: Sections) -> Iterator[Finding]:
    gradient = config.training_config.gradient
    if config.optimizer_config.overlap_param_gather and not gradient.use_distributed_optimizer:
        yield Finding("--overlap-param-gather", None, "needs --use-distributed-optimizer", "add it")
    if config.optimizer_config.overlap_param_gather and not gradient.overlap_grad_reduce:
        yield Finding("--overlap-param-gather", None, "needs --overlap-grad-reduce", "add it")
    if not gradient.wrap_with_ddp and (gradient.overlap_grad_reduce or gradient.use_distributed_optimizer):
        yield Finding(
            "--no-wrap-with-ddp",
            None,
            "--overlap-grad-reduce and --use-distributed-optimizer work on the flat buckets",
            "leave it out",
        )


def averages_where_gradients_are_averaged(config: Sections) -> Iterator[Finding]:
    training = config.training_config
    if training.gradient.average_in_collective and training.calculate_per_token_loss:
        rule = "with --calculate-per-token-loss gradients are summed, and divided by the number of tokens"
        yield Finding("--ddp-average-in-collective", None, rule, "leave one of them out")


def states_are_copied_evenly(config: Sections) -> Iterator[Finding]:
    yield from instances_share_the_replicas(config.parallel_config)


def weights_are_cut_without_a_pipeline(config: Sections) -> Iterator[Finding]:
    stages, gradient = config.parallel_config.pipeline_model_parallel_size, config.training_config.gradient
    if gradient.zero_stage == 3 and stages > 1:
        yield Finding(
            "--zero-stage",
            3,
            f"every micro-batch would gather each weight anew on all --pipeline-model-parallel-size {stages} stages, "
            "which share out the weights already",
            "use stage 2 (--zero-stage 2 alone, or --use-megatron-fsdp with --data-parallel-sharding-strategy "
            "optim_grads), or no pipeline",
        )


def offloaded_states_are_swept(config: Sections) -> Iterator[Finding]:
    rule = config.optimizer_config.update_rules[0]
    if config.training_config.offload.offloads_optimizer and not rule.is_elementwise:
        yield Finding(
            "--optimizer",
            rule.name,
            "its products belong on the device; with --cpu-offload-optimizer or --nvme-path updates run on the host",
            "leave one of them out, or use adam",
        )


def copies_can_be_compared(config: Sections) -> Iterator[Finding]:
    training = config.training_config
    every = training.check_weight_hash_across_dp_replicas_interval
    if every is not None and training.gradient.zero_stage == 3:
        yield Finding(
            "--check-weight-hash-across-dp-replicas-interval",
            every,
            "with ZeRO stage 3 (--zero-stage) there are no copies of the weights",
            "leave it out",
        )


def checkpoints_are_kept(config: Sections) -> Iterator[Finding]:
    checkpoint = config.training_config.checkpoint
    keep, every = checkpoint.save_retain_interval, checkpoint.save_interval
    if keep is not None and (every is None or keep % every):
        yield Finding(
            "--save-retain-interval", keep, f"must be a multiple of --save-interval {every}", "change one of them"
        )


def adapters_have_a_rank(config: Sections) -> Iterator[Finding]:
    lora, hot = config.lora_config, config.moe_config.hot_expert_num
    if lora.target_modules and lora.lora_rank == 0:
        yield Finding("--lora-r", 0, "must be at least 1 with --lora-target-modules", "raise it")
    if lora.use_lora and hot:
        rule = "does not go with --lora-target-modules: frozen experts have no gradients to gather"
        yield Finding("--hot-expert-num", hot, rule, "leave one of them out")


def resuming_takes_everything(config: Sections) -> Iterator[Finding]:
    checkpoint = config.training_config.checkpoint
    if checkpoint.resume_training and checkpoint.load_checkpoint is None:
        yield Finding("--resume-training", None, "needs --load", "add it")
    if checkpoint.resume_training and checkpoint.finetune:
        yield Finding(
            "--resume-training", None, "does not go with --finetune, which takes weights only", "leave one of them out"
        )


def prefix_starts_a_name(config: Sections) -> Iterator[Finding]:
    prefix = config.training_config.checkpoint.prefix
    if not starts_a_name(prefix):
        yield Finding("--ckpt-prefix", prefix, "must be letters, digits, - and _, with which names start", "change it")


def ids_are_in_the_vocabulary(config: Sections) -> Iterator[Finding]:
    data, rows = config.dataset_config, config.model_config.vocab_size
    for flag, number in (("--eos-token-id", data.eos_token_id), ("--pad-token-id", data.pad_token_id)):
        if number is not None and number >= rows:
            yield Finding(flag, number, f"must be less than the vocabulary, --padded-vocab-size {rows}", "change it")


def split_is_shares(config: Sections) -> Iterator[Finding]:
    split = config.dataset_config.split
    if split is None:
        return
    try:
        train = split_shares(str(split))[0]
    except ConfigError as error:
        yield from error.findings
        return
    if train == 0 and not config.training_config.skip_train:
        yield Finding("--split", split, "leaves no document to train on", "give the first share more than 0")


def blends_can_be_read(config: Sections) -> Iterator[Finding]:
    data = config.dataset_config
    for flag, words in (
        ("--data-path", data.data_path),
        ("--train-data-path", data.train_data_path),
        ("--valid-data-path", data.valid_data_path),
        ("--test-data-path", data.test_data_path),
    ):
        try:
            if words is not None:
                parse_blend(words, flag)
        except ConfigError as error:
            yield from error.findings


def training_has_data(config: Sections) -> Iterator[Finding]:
    data = config.dataset_config
    for flag, words in (("--valid-data-path", data.valid_data_path), ("--test-data-path", data.test_data_path)):
        if words is not None and data.train_data_path is None and not config.training_config.skip_train:
            yield Finding(flag, None, "needs --train-data-path", "add it")


RULES = (
    batches_divide,
    ramp_reaches_the_batch,
    batches_step,
    overlap_has_something_to_overlap,
    states_are_copied_evenly,
    averages_where_gradients_are_averaged,
    weights_are_cut_without_a_pipeline,
    offloaded_states_are_swept,
    copies_can_be_compared,
    checkpoints_are_kept,
    resuming_takes_everything,
    prefix_starts_a_name,
    split_is_shares,
    blends_can_be_read,
    training_has_data,
    adapters_have_a_rank,
    ids_are_in_the_vocabulary,
)
