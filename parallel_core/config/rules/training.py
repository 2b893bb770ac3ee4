"""Rules of batches, gradients, optimizer states, weights, data, vocabulary, adapters and checkpoints."""

from collections.abc import Iterator

from parallel_core.batch_sizes import BatchSizes
from parallel_core.config.checkpoint import starts_a_name
from parallel_core.config.faults import ROLL_BACK
from parallel_core.config.notations import parse_blend, split_shares
from parallel_core.config.sections import Sections
from parallel_core.findings import ConfigError, Finding
from parallel_core.sizes import instances_share_the_replicas


def rolling_back_needs_checkpoints(config: Sections) -> Iterator[Finding]:
    training = config.training_config
    saves = training.checkpoint.output_dir and training.checkpoint.save_interval
    if training.faults.loss_spike_action == ROLL_BACK and not saves:
        yield training.faults.breaks(
            "loss_spike_action", "needs checkpoints to go back to", "add --save and --save-interval"
        )


def batches_divide(config: Sections) -> Iterator[Finding]:
    data, copies = config.dataset_config, config.parallel_config.data_parallel_size
    samples, one_round = data.batch_size * copies, f"--micro-batch-size {data.batch_size} x data-parallel size {copies}"
    if data.global_batch_size % samples:
        yield data.breaks("global_batch_size", f"must be a multiple of {one_round} = {samples}")
    elif data.micro_batch_num * samples != data.global_batch_size:
        rule = f"differs from --micro-batch-num {data.micro_batch_num} x {one_round}"
        yield data.breaks("global_batch_size", rule, "leave one of them out")
    if data.eval_global_batch_size and data.eval_global_batch_size % samples:
        yield data.breaks("eval_global_batch_size", f"must be a multiple of {one_round} = {samples}")


def ramp_reaches_the_batch(config: Sections) -> Iterator[Finding]:
    data, copies = config.dataset_config, config.parallel_config.data_parallel_size
    if data.rampup_batch_size is None:
        return
    if len(data.rampup_batch_size) != 3:
        yield data.breaks("rampup_batch_size", "needs three numbers: first size, increment, samples", "change it")
        return
    start, step, samples = data.rampup_batch_size
    ramp, unit = f"--rampup-batch-size {start} {step} {samples}", data.batch_size * copies
    if start < 1 or step < 1 or samples < 0:
        yield Finding(ramp, None, "start and increment must be at least 1, samples at least 0", "change them")
    elif data.global_batch_size < start or (data.global_batch_size - start) % step:
        rule = f"steps of {step} from {start} must reach --global-batch-size {data.global_batch_size}"
        yield Finding(ramp, None, rule, "change one of them")
    if start % unit or step % unit:
        one_round = f"--micro-batch-size {data.batch_size} x data-parallel size {copies}"
        yield Finding(ramp, None, f"start and increment must be multiples of {one_round}", "change one of them")


def batches_step(config: Sections) -> Iterator[Finding]:
    data, unit = config.dataset_config, config.dataset_config.batch_size * config.parallel_config.data_parallel_size
    if data.step_batch_size_schedule is None:
        return
    if data.rampup_batch_size is not None:
        rule = "does not go with --step-batch-size-schedule"
        yield Finding("--rampup-batch-size", None, rule, "leave one of them out")
    sizes = BatchSizes.of(data, config.model_config.seq_length)
    if not sizes.is_sound:
        rule = "needs amounts that rise from 0, each with a size, the last of which is --global-batch-size"
    elif wrong := [size for size in sizes.sizes() if size % unit]:
        rule = f"sizes must be multiples of --micro-batch-size x data-parallel size = {unit}, not {wrong[0]}"
    else:
        return
    yield data.breaks("step_batch_size_schedule", rule, "change it")


def overlap_has_something_to_overlap(config: Sections) -> Iterator[Finding]:
    gradient, optimizer = config.training_config.gradient, config.optimizer_config
    if optimizer.overlap_param_gather and not gradient.use_distributed_optimizer:
        yield optimizer.needs("overlap_param_gather", "--use-distributed-optimizer")
    if optimizer.overlap_param_gather and not gradient.overlap_grad_reduce:
        yield optimizer.needs("overlap_param_gather", "--overlap-grad-reduce")
    if not gradient.wrap_with_ddp and (gradient.overlap_grad_reduce or gradient.use_distributed_optimizer):
        rule = "--overlap-grad-reduce and --use-distributed-optimizer work on the flat buckets"
        yield gradient.breaks("wrap_with_ddp", rule, "leave it out")


def states_are_copied_evenly(config: Sections) -> Iterator[Finding]:
    yield from instances_share_the_replicas(config.parallel_config)


def averages_where_gradients_are_averaged(config: Sections) -> Iterator[Finding]:
    training = config.training_config
    if training.gradient.average_in_collective and training.calculate_per_token_loss:
        rule = "with --calculate-per-token-loss gradients are summed, and divided by the number of tokens"
        yield training.gradient.breaks("average_in_collective", rule, "leave one of them out")


def weights_are_cut_without_a_pipeline(config: Sections) -> Iterator[Finding]:
    stages, gradient = config.parallel_config.pipeline_model_parallel_size, config.training_config.gradient
    if gradient.zero_stage == 3 and stages > 1:
        yield gradient.breaks(
            "zero_stage",
            f"every micro-batch would gather each weight anew on all --pipeline-model-parallel-size {stages} stages, "
            "which share out the weights already",
            "use stage 2 (--zero-stage 2 alone, or --use-megatron-fsdp with --data-parallel-sharding-strategy "
            "optim_grads), or no pipeline",
        )


def offloaded_states_are_swept(config: Sections) -> Iterator[Finding]:
    is_elementwise = config.optimizer_config.update_rules[0].is_elementwise
    if config.training_config.offload.offloads_optimizer and not is_elementwise:
        rule = "its products belong on the device; with --cpu-offload-optimizer or --nvme-path updates run on the host"
        yield config.optimizer_config.breaks("optimizer_type", rule, "leave one of them out, or use adam")


def copies_can_be_compared(config: Sections) -> Iterator[Finding]:
    training, name = config.training_config, "check_weight_hash_across_dp_replicas_interval"
    if getattr(training, name) is not None and training.gradient.zero_stage == 3:
        rule = "with ZeRO stage 3 (--zero-stage) there are no copies of the weights"
        yield training.breaks(name, rule, "leave it out")


def checkpoints_are_kept(config: Sections) -> Iterator[Finding]:
    checkpoint = config.training_config.checkpoint
    keep, every = checkpoint.save_retain_interval, checkpoint.save_interval
    if keep is not None and (every is None or keep % every):
        yield checkpoint.breaks("save_retain_interval", f"must be a multiple of --save-interval {every}")


def resuming_takes_everything(config: Sections) -> Iterator[Finding]:
    checkpoint = config.training_config.checkpoint
    if checkpoint.resume_training and checkpoint.load_checkpoint is None:
        yield checkpoint.needs("resume_training", "--load")
    if checkpoint.resume_training and checkpoint.finetune:
        yield checkpoint.clashes("resume_training", "--finetune, which takes weights only")


def prefix_starts_a_name(config: Sections) -> Iterator[Finding]:
    checkpoint = config.training_config.checkpoint
    if not starts_a_name(checkpoint.prefix):
        yield checkpoint.breaks("prefix", "must be letters, digits, - and _, with which names start", "change it")


def split_is_shares(config: Sections) -> Iterator[Finding]:
    data = config.dataset_config
    if data.split is None:
        return
    try:
        train = split_shares(str(data.split))[0]
    except ConfigError as error:
        yield from error.findings
        return
    if train == 0 and not config.training_config.skip_train:
        yield data.breaks("split", "leaves no document to train on", "give the first share more than 0")


def blends_can_be_read(config: Sections) -> Iterator[Finding]:
    for name in ("data_path", "train_data_path", "valid_data_path", "test_data_path"):
        words = getattr(config.dataset_config, name)
        try:
            if words is not None:
                parse_blend(words, f"--{name.replace('_', '-')}")
        except ConfigError as error:
            yield from error.findings


def training_has_data(config: Sections) -> Iterator[Finding]:
    data = config.dataset_config
    for flag, words in (("--valid-data-path", data.valid_data_path), ("--test-data-path", data.test_data_path)):
        if words is not None and data.train_data_path is None and not config.training_config.skip_train:
            yield Finding(flag, None, "needs --train-data-path", "add it")


def raw_data_are_files_of_their_own(config: Sections) -> Iterator[Finding]:
    data = config.dataset_config
    told, length = data.instruction, config.model_config.seq_length
    if told.raw is None:
        return
    others = {"--is-instruction-dataset": told.enabled, "--sft": told.sft, "--train-mode finetune": told.labels_in_data}
    for flag in (name for name, is_on in others.items() if is_on):
        yield told.clashes("raw", f"{flag}, whose data are others")
    if data.train_data_path is None and not config.training_config.skip_train:
        yield told.needs("raw", "--train-data-path, a .jsonl file")
    for name in ("train_data_path", "valid_data_path", "test_data_path"):
        if len(getattr(data, name) or ()) > 1:
            yield data.breaks(name, f"names one file with --dataset {told.raw}", "put the others into it")
    for name in ("reset_position_ids", "reset_attention_mask"):
        if getattr(data, name):
            rule = f"begins documents anew, of which a sample of --dataset {told.raw} has one"
            yield data.breaks(name, rule, "leave one of them out")
    if (told.max_padding_length or 0) > length:
        yield told.breaks("max_padding_length", f"must be at most --seq-length {length}", "change one of them")


def weights_are_rounded_once(config: Sections) -> Iterator[Finding]:
    float8, scheme = config.model_config.float8, config.training_config.precision.qat_scheme
    if float8.fp8_simulate and scheme:
        yield float8.clashes("fp8_simulate", f"--qat-scheme {scheme}, which rounds weights to 4 bits")


def adapters_have_a_rank(config: Sections) -> Iterator[Finding]:
    lora, moe = config.lora_config, config.moe_config
    if lora.target_modules and lora.lora_rank == 0:
        yield lora.breaks("lora_rank", "must be at least 1 with --lora-target-modules", "raise it")
    if lora.use_lora and config.training_config.precision.qat_scheme:
        rule = "--lora-target-modules: frozen weights learn nothing of their rounding"
        yield config.training_config.precision.clashes("qat_scheme", rule, "use --qlora, or leave one of them out")
    if lora.use_lora and moe.hot_expert_num:
        yield moe.clashes("hot_expert_num", "--lora-target-modules: frozen experts have no gradients to gather")


def ids_are_in_the_vocabulary(config: Sections) -> Iterator[Finding]:
    data, rows = config.dataset_config, config.model_config.vocab_size
    for name in ("eos_token_id", "pad_token_id"):
        number = getattr(data, name)
        if number is not None and number >= rows:
            yield data.breaks(name, f"must be less than the vocabulary, --padded-vocab-size {rows}", "change it")
