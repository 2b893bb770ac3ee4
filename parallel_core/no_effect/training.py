"""Options without effect (`ROWS`): options of the loop, data, checkpoints, logs, profiles, precision, the optimizer and
adapters that change nothing under certain settings, with the condition and the reason."""

from parallel_core.config.all import AllConfig
from parallel_core.config.dataset import InstructionConfig
from parallel_core.config.optimizer import RULES
from parallel_core.config.precision import PrecisionConfig
from parallel_core.config.profiler import ProfilerConfig
from parallel_core.config.update_rules.rule import UpdateRule
from parallel_core.no_effect.row import Idle, all_of, below, needs, unless, where

_OF_TRACES = "profile_step_start profile_step_end profile_ranks"
_OF_RECORDS = "record_step_start record_step_end"
_OTHER = ("profile", "trace", "record", *_OF_RECORDS.split())
_OF_PROFILES = below(ProfilerConfig, *_OTHER, *_OF_TRACES.split())
_DYNAMIC = "profile_dynamic_profiler_config_path"
_OF_MINDSPORE = below(ProfilerConfig, *_OTHER, "profile_save_path", *_OF_TRACES.split())
"""Options that only MindSpore's profiler reads."""


def _reads_no_sample_again(config: AllConfig) -> bool:
    """Whether --max_train_samples changes nothing: a training that is not counted in epochs takes no more samples than
    that."""
    data, training = config.dataset_config, config.training_config
    samples = training.training_iters * data.global_batch_size
    return training.epochs is None and data.max_train_samples is not None and 0 < samples <= data.max_train_samples


def _ends_before_its_profile(config: AllConfig) -> bool:
    training = config.training_config
    return (
        not (training.profiler.is_dynamic and training.profiler.profile)
        and 0 < training.training_iters <= training.profiler.profile_step_start
    )


def _counts_through_samples(config: AllConfig) -> bool:
    positions = config.model_config.position_embedding_type
    return positions != "learned_absolute" and not config.dataset_config.instruction.labels_in_data


def _writes_no_times(config: AllConfig) -> bool:
    log = config.training_config.log
    return not (log.writers("") and log.log_timers_to_tensorboard)


_OF_HUGGINGFACE = ("HuggingFaceTokenizer", "PretrainedFromHF", "SFTTokenizer")
_SENTENCE_PIECE = ("GPTSentencePieceTokenizer", "SentencePieceTokenizer", "Llama2Tokenizer")
_OF_TOKENIZERS = (
    ("tokenizer_kwargs tokenizer_hf_include_special_tokens trust_remote_code", _OF_HUGGINGFACE),
    ("tiktoken_pattern tiktoken_num_special_tokens", ("TikTokenizer",)),
    ("tokenizer_special_tokens", ("HuggingFaceTokenizer", *_SENTENCE_PIECE, "TikTokenizer")),
    (
        "tokenizer_sentencepiece_legacy tokenizer_sentencepiece_ignore_extra_whitespaces",
        _SENTENCE_PIECE,
    ),
    ("vocab_extra_ids", ("SentencePieceTokenizer", "BertWordPieceCase", "BertWordPieceLowerCase")),
    ("null_tokenizer_eod_id null_tokenizer_pad_id", ("NullTokenizer",)),
    ("sft_tokenizer_prompt_format", ("SFTTokenizer",)),
)
"""(Names of settings, kinds of tokenizers that read them)."""


def _of_update_rule(rule: UpdateRule) -> Idle:
    return Idle(
        below(rule.options),
        lambda config: rule not in config.optimizer_config.update_rules,
        f"needs {rule.asked_by or f'--optimizer {rule.name}'}",
    )


_ADAPTING_SCALE = below(PrecisionConfig, "bf16", "fp16", "qat_scheme", "loss_scale")
_IN_16_BITS = "bfloat16 has float32's range; only a fixed --loss-scale acts with it"
_ADAPTIVE = "--adaptive-loss-scale shrinks the scale at every overflow, down to 1"

IN_FLOAT32 = Idle(
    f"loss_scale {_ADAPTING_SCALE}",
    all_of(unless("precision.fp16"), unless("precision.bf16")),
    "float32 gradients are not scaled",
)

LOSS_SCALES = (
    IN_FLOAT32,
    Idle(_ADAPTING_SCALE, unless("precision.loss_scale", None), "--loss-scale gives a fixed scale"),
    Idle(_ADAPTING_SCALE, where("precision.bf16", True), _IN_16_BITS),
    Idle(
        "max_loss_scale_window min_loss_scale_window", unless("loss_scaler", "adaptive"), "needs --adaptive-loss-scale"
    ),
    Idle("loss_scale_factor", where("loss_scaler", "deepspeed"), "DeepSpeed's scale doubles and halves"),
    Idle("loss_scale_hysteresis min_loss_scale", where("loss_scaler", "adaptive"), _ADAPTIVE),
)

_OF_SAVES = "save_interval async_save keep_checkpoint_max prefix ckpt_format no_save_optim no_save_rng"
_OF_LOADS = "no_load_optim no_load_rng crc_check ckpt_step dist_ckpt_strictness exit_on_missing_checkpoint finetune"
_OF_RESUMING = "resume_training new_dataset override_opt_param_scheduler use_checkpoint_opt_param_scheduler"
_READ_ENDS = ("instruction.enabled", "instruction.raw", "reset_position_ids", "reset_attention_mask", "eod_mask_loss")
_OTHER_DATA = ("enabled", "labels_in_data", "sft", "raw", "max_padding_length")
_WARM_UPS = ("lr_warmup_iters", "lr_warmup_samples", "lr_warmup_fraction")
_MOMENTS_IN_FLOAT32 = all_of(where("exp_avg_dtype", "fp32"), where("exp_avg_sq_dtype", "fp32"))
_ON_CPU = "on a CPU MindSpore's profiler records operators of --kernels ops alone; --profile writes a trace"
_NO_ENDS = "no end of a document is looked for without --reset-position-ids, --reset-attention-mask or --eod-mask-loss"
_FIXED = "--fix-sub-seq-length says where a piece that attends to no other begins"
_COUNTED = "needs --position-embedding-type learned_absolute: other positions are counted through a whole sample"

ROWS = (
    *LOSS_SCALES,
    Idle("max_train_samples", _reads_no_sample_again, "training takes no more samples than this in any case"),
    needs("output_dir", f"{_OF_SAVES} convert_to_huggingface"),
    needs("load_checkpoint", f"{_OF_LOADS} {_OF_RESUMING} convert_from_huggingface"),
    needs("use_checkpoint_args", "use_mp_args_from_checkpoint_args use_tokenizer_model_from_checkpoint_args"),
    needs("convert_to_huggingface", "huggingface_model_type"),
    Idle("eval_interval", unless("eval_iters"), "--eval-iters 0 asks for no evaluation"),
    needs("tensorboard_dir", "tensorboard_queue_size"),
    needs("wandb_project", "wandb_exp_name wandb_save_dir wandb_entity"),
    Idle(
        "tensorboard_log_interval log_timers_to_tensorboard log_loss_scale_to_tensorboard "
        "log_validation_ppl_to_tensorboard log_memory_to_tensorboard log_world_size_to_tensorboard",
        lambda config: not config.training_config.log.writers(""),
        "needs --tensorboard-dir or another writer",
    ),
    Idle("log_throughput", _writes_no_times, "the log has TFLOP/s always; curves need --log-timers-to-tensorboard"),
    Idle(
        "log_validation_ppl_to_tensorboard eval_global_batch_size",
        lambda config: not (config.training_config.eval_iters and config.training_config.eval_interval),
        "needs --eval-iters and --eval-interval above 0: nothing is evaluated",
    ),
    needs("output_dir", "log_progress"),
    needs("timing_log_level", "timing_log_option barrier_with_L1_time"),
    needs("profile", _OF_PROFILES),
    needs("record", _OF_RECORDS),
    needs("log_straggler", "straggler_minmax_count"),
    Idle(_OF_TRACES, all_of(unless("profiler.profile"), unless("profiler.trace")), "needs --profile or --trace"),
    Idle(_OF_MINDSPORE, all_of(lambda config: config.parallel_config.is_on_cpu, unless("kernels", "ops")), _ON_CPU),
    Idle(
        f"profile trace {_OF_TRACES} {_OF_PROFILES}",
        _ends_before_its_profile,
        "training ends before --profile-step-start",
    ),
    Idle(
        below(ProfilerConfig, *_OTHER, "profile_save_path", "profile_ranks", _DYNAMIC),
        all_of(unless(_DYNAMIC, None), unless("profiler.trace")),
        "the file of --profile-dynamic-profiler-config-path says what is profiled",
    ),
    needs("instruction.enabled", below(InstructionConfig, *_OTHER_DATA)),
    needs("instruction.raw", "max_padding_length"),
    Idle("split", unless("instruction.raw", None), "each split has a file of its own"),
    Idle("eod_mask_loss", unless("instruction.raw", None), "padding behind an answer carries no loss in any case"),
    needs("reset_attention_mask", "create_attention_mask_in_dataloader neat_pack fix_sub_seq_length"),
    Idle("neat_pack", lambda config: config.dataset_config.instruction.fix_sub_seq_length > 0, _FIXED),
    Idle("eos_token_id", all_of(*map(unless, _READ_ENDS)), _NO_ENDS),
    Idle("reset_position_ids", _counts_through_samples, _COUNTED),
    Idle(
        "vocab_file merge_file tokenizer_model tokenizer_kwargs",
        where("dataset_config.tokenizer_type", "NullTokenizer"),
        "--tokenizer-type NullTokenizer has no files",
    ),
    *(needs("dataset_config.tokenizer_type", options, *kinds) for options, kinds in _OF_TOKENIZERS),
    needs("dataloader_type", "data_sharding", "cyclic"),
    *map(_of_update_rule, RULES.values()),
    needs("pma_fused_algo", "pma_fused_num pma_interleave_step"),
    needs("pma_fused_algo", "pma_ema_alpha", "ema"),
    Idle("use_precision_aware_optimizer", _MOMENTS_IN_FLOAT32, "needs --exp-avg-dtype or --exp-avg-sq-dtype bf16"),
    needs("lr_decay_style", "lr_wsd_decay_style lr_wsd_decay_iters lr_wsd_decay_samples", "WSD"),
    Idle(
        "lr_warmup_init lr_warmup_style",
        all_of(*map(unless, _WARM_UPS)),
        "needs --lr-warmup-iters, --lr-warmup-samples or --lr-warmup-fraction",
    ),
    Idle(
        "cpu_offload_optimizer nvme_path",
        where("optimizer_offload_fraction", 0),
        "--optimizer-offload-fraction 0 keeps all states on the device",
    ),
    Idle(
        "qat_scheme",
        lambda config: (
            config.moe_config.num_experts is None
            and config.training_config.precision.qat_scheme == "w4a16-mxfp4-moe-only"
        ),
        "there are no experts without --num-experts, whose weights alone would be rounded",
    ),
    Idle(
        "lora_rank lora_alpha lora_dropout lora_config.cells lora_load qlora",
        unless("lora_rank"),
        "there are no adapters without --lora-target-modules",
    ),
)
