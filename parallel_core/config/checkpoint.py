"""Options of checkpoints: folders, formats, parts that are saved and loaded."""

import re
from dataclasses import dataclass

from parallel_core.config.base import Config, option
from parallel_core.strictness import STRICTNESS


def starts_a_name(prefix: str) -> bool:
    """Whether names of files can start with `prefix`: letters, digits, underscores, dots and hyphens, at least one, and
    no dot or hyphen at its start."""
    return re.fullmatch(r"\w[\w.-]*", prefix) is not None


@dataclass(kw_only=True)
class CheckpointConfig(Config):
    """Options of saving, loading and resuming."""

    output_dir: str | None = option("--save", None)
    """Folder of the checkpoints that are written."""
    load_checkpoint: str | None = option("--load", None)
    """Checkpoint to start from."""
    save_interval: int | None = option("--save-interval", None, at_least=1)
    """Iterations from one checkpoint to the next; if not given, one is written at the end alone."""
    async_save: bool = option("--async-save", False)
    """Training goes on while a checkpoint is copied to host memory, which the next one uses again, and written from
    there; a run waits for its last one."""
    overwrite_save: bool = option("--overwrite-save", False)
    """Begin a run in a directory in which an earlier run has saved: what that has left is moved into a subdirectory
    `earlier_1`, `earlier_2`, ..."""
    on_save_failure: str = option("--on-save-failure", "warn", choices=("warn", "stop"))
    """Action after a checkpoint could not be written in three tries: go on training, with a warning, or stop. The last
    checkpoint of a run must be written."""
    keep_checkpoint_max: int | None = option("--keep-checkpoint-max", None, at_least=1)
    """Newest checkpoints of the run that are kept; all if not given."""
    prefix: str = option("--ckpt-prefix", "network")
    """Beginning of the names of a checkpoint's files; safetensors files have none while this is at its default."""
    ckpt_format: str = option(
        "--ckpt-format",
        "torch_dist",
        choices=("torch", "torch_dist", "torch_dcp", "fsdp_dtensor", "safetensors", "ckpt"),
    )
    """The checkpoint layout that was asked for: ckpt is MindSpore's file for each rank, all others give safetensors."""
    no_save_optim: bool = option("--no-save-optim", False)
    """Leave the optimizer out of checkpoints."""
    no_save_rng: bool = option("--no-save-rng", False)
    """Leave random states out of checkpoints."""
    no_load_optim: bool = option("--no-load-optim", False)
    """Start the optimizer anew."""
    no_load_rng: bool = option("--no-load-rng", False)
    """Start random states anew."""
    ckpt_step: int | None = option("--ckpt-step", None, at_least=0)
    """The iteration to load; the newest if not given."""
    dist_ckpt_strictness: str = option("--dist-ckpt-strictness", "raise_all", choices=tuple(STRICTNESS))
    """Whether names that the model (Megatron: unexpected) or the checkpoint (missing) has alone are refused, logged or
    skipped; and whether settings of another network are refused or logged."""
    exit_on_missing_checkpoint: bool = option("--exit-on-missing-checkpoint", False)
    """Stop if `load_checkpoint` holds no checkpoint, instead of starting anew."""
    use_checkpoint_args: bool = option("--use-checkpoint-args", False)
    """Take from `load_checkpoint` what says which model it is: sizes and adapters that no flag gives, and, whatever
    the flags say, its kind (positions, biases, norm, activation, dropout rates, experts, tokenizer)."""
    use_mp_args_from_checkpoint_args: bool = option("--use-mp-args-from-checkpoint-args", False)
    """Take, with `use_checkpoint_args`, also the tensor-, pipeline- and expert-parallel sizes, whatever the flags
    say."""
    use_tokenizer_model_from_checkpoint_args: bool = option("--no-use-tokenizer-model-from-checkpoint-args", True)
    """Take, with `use_checkpoint_args`, also the path of the tokenizer's model."""
    save_retain_interval: int | None = option("--save-retain-interval", None, at_least=1)
    """Iterations whose multiples' checkpoints are never removed; of the run's others only the newest is kept."""
    convert_from_huggingface: bool = option("--enable-hf2mg-convert", False)
    """Refuse a `load_checkpoint` that holds no HuggingFace model; without it the format is recognised."""
    convert_to_huggingface: bool = option("--enable-mg2hf-convert", False)
    """Write each checkpoint as a HuggingFace model as well, in the folder `huggingface` of the checkpoint."""
    huggingface_model_type: str | None = option("--model-type-hf", None)
    """Family of the HuggingFace models that are written; if not given, the first family that has this model's form.
    Folders that are read name their own."""
    finetune: bool = option("--finetune", False)
    """Load weights only and count iterations from zero."""
    resume_training: bool | None = option("--resume-training", None)
    """Go on where `load_checkpoint` stopped: it must hold a run. False: take its weights alone, as `finetune` does. If
    not given: go on if it holds a run."""
    crc_check: bool = option("--no-resume-crc-check", True)
    """Compare every byte of a checkpoint that is loaded with its checksum."""
    new_dataset: bool = option("--new-dataset", False)
    """Start, on resuming, the data from its beginning."""

    @property
    def begins_anew(self) -> bool:
        """Whether options ask for only the weights of a checkpoint, while iteration, optimizer, schedule and data begin
        anew; without them, too, a checkpoint may hold weights alone."""
        return self.finetune or self.resume_training is False
