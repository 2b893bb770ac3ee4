"""All sections together: values that follow from several of them, and rules between them."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any

from parallel_core.batch_sizes import BatchSizes
from parallel_core.config.base import Unjudged, complain, judge
from parallel_core.config.rules import RULES
from parallel_core.config.sections import Sections
from parallel_core.findings import Finding
from parallel_core.partition import is_nested, virtual_stages
from parallel_core.schedules.dualpipev import DUALPIPE_V, fewest_micro_batches
from parallel_core.schedules.folded import CHUNKS
from parallel_core.schedules.generators import COMBINED, FOLDED, INTERLEAVED


@dataclass(kw_only=True)
class AllConfig(Sections):
    """The configuration of a run. Building it fills the options that follow from several sections and checks every
    rule between sections; each section's own options and rules are checked when that section is built.

    Raises `ConfigError` (a `ValueError`) with all findings, unless `gather_findings` takes them. Afterwards a section's
    `sibling` fields, such as `model_config.parallel_config`, hold the sections of those names.
    """

    def __post_init__(self) -> None:
        self.named: dict[str, str] = {}
        """Path of an option -> the flag or key of a file by which a user gave it, where that is known."""
        self.given: dict[str, Any] = {}
        """Path of an option -> the value that it was built with, where that is known; other options are derived or at
        their defaults."""
        self.outcomes: list[dict[str, Any]] = []
        """Every flag and key that was given, and what became of it (`mapping.outcome`); empty where a script builds the
        config."""
        self._link()
        self._derive()
        complain(judge(RULES, self))

    @property
    def model(self) -> "AllConfig":
        """This configuration, by the name of MindFormers' section around `model_config`."""
        return self

    @property
    def callbacks(self) -> list[dict[str, Any]]:
        """The list of callbacks as MindFormers' files have it: one entry, which saves checkpoints; empty without
        --save."""
        checkpoint = self.training_config.checkpoint
        saves = {"type": "CheckpointMonitor", "save_checkpoint_steps": checkpoint.save_interval}
        return [saves] if checkpoint.output_dir else []

    def _link(self) -> None:
        """Give every section the sibling sections that it names."""
        sections = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        for section in sections.values():
            for entry in fields(section):
                if "sibling" in entry.metadata:
                    setattr(section, entry.name, sections[entry.name])
        self.parallel_config.all_config = self

    def _derive(self) -> None:
        data, parallel, schedule = self.dataset_config, self.parallel_config, self.optimizer_config
        layers = self.model_config.num_layers
        if parallel.pipeline_schedule in FOLDED and not is_nested(parallel.num_layer_list):
            parallel.fill("virtual_pipeline_model_parallel_size", lambda: CHUNKS)
        parallel.fill("virtual_pipeline_model_parallel_size", lambda: virtual_stages(layers, parallel))
        parallel.fill("pipeline_schedule", lambda: COMBINED if self.overlaps_experts else None)
        data.fill(
            "global_batch_size",
            lambda: (
                data.step_batch_size_schedule[-1][-1]
                if data.step_batch_size_schedule
                else data.batch_size * parallel.data_parallel_size * (data.micro_batch_num or self._smallest_round())
            ),
        )
        data.fill(
            "micro_batch_num", lambda: max(1, data.global_batch_size // (data.batch_size * parallel.data_parallel_size))
        )
        if self.training_config.train_samples is None:
            schedule.fill("lr_decay_iters", lambda: self.training_config.training_iters or None)
        else:
            schedule.fill("lr_decay_samples", lambda: self.training_config.train_samples)
            self._iterations_of_samples()
        with suppress(Unjudged):
            self.training_config.calculate_per_token_loss |= not data.drop_remainder
        with suppress(Unjudged):
            self._precision_of_types()
        with suppress(Unjudged):
            parallel.fused = self.model_config.fused_operators
        parallel.fill("expert_tensor_parallel_size", lambda: parallel.tensor_model_parallel_size)
        self.moe_config.fill("moe_ffn_hidden_size", lambda: self.model_config.ffn_hidden_size)

    def _precision_of_types(self) -> None:
        """Set bf16 or fp16 where only a 16-bit compute type was given."""
        kind, training = self.model_config.compute_dtype, self.training_config
        if not (training.precision.bf16 or training.precision.fp16):
            training.precision.bf16, training.precision.fp16 = kind == "bfloat16", kind == "float16"
            training.derive()

    @property
    def batch_sizes(self) -> BatchSizes:
        """The global batch size as a function of the samples before a step."""
        return BatchSizes.of(self.dataset_config, self.model_config.seq_length)

    @property
    def evaluated_micro_batches(self) -> int:
        """The number of micro-batches on each data-parallel rank in one batch of an evaluation."""
        data, size = self.dataset_config, self.dataset_config.eval_global_batch_size
        unit = data.batch_size * self.parallel_config.data_parallel_size
        return data.micro_batch_num if size is None else size // unit

    @property
    def overlaps_experts(self) -> bool:
        """Whether tokens may travel to their experts while another micro-batch computes: with experts, an
        expert-parallel size above 1 and --overlap-moe-expert-parallel-comm, if no flag stands against it
        (`against_pairs`). The schedule, which must be one of `PAIRED` for that, is not regarded."""
        moe, size = self.moe_config, self.parallel_config.expert_model_parallel_size
        travel = moe.num_experts is not None and size > 1
        return moe.overlap_moe_expert_parallel_comm and travel and not self.against_pairs

    @property
    def takes_turns(self) -> bool:
        """Whether the two computations of a schedule's pair, one micro-batch's forward and another's backward, run side
        by side on a stage and take turns: in the schedule combined-1f1b, or with `overlaps_experts`."""
        return self.overlaps_experts or self.parallel_config.pipeline_schedule == COMBINED

    def _smallest_round(self) -> int:
        """The fewest micro-batches that the schedule takes: interleaving goes through the chunks in whole groups."""
        parallel = self.parallel_config
        if parallel.schedule_name == DUALPIPE_V:
            return fewest_micro_batches(parallel.pipeline_model_parallel_size)
        if parallel.chunks == 1 or parallel.schedule_name not in INTERLEAVED:
            return 1
        return parallel.microbatch_group_size_per_virtual_pipeline_stage or parallel.pipeline_model_parallel_size

    def _iterations_of_samples(self) -> None:
        with suppress(Unjudged):
            samples = self.training_config.train_samples or 0
            sizes = self.batch_sizes
            self.training_config.training_iters = sizes.steps(samples) if sizes.is_sound else 1

    def train_for(self, iterations: int) -> None:
        """Set the number of iterations, which epochs leave open until the data are there, and, if it is None,
        `lr_decay_iters`, the length of the learning rate's decay, to the same number; check the rules between sections
        again.

        Raises `ConfigError` if other options do not fit this number of iterations.
        """
        self.training_config.training_iters = iterations
        self.optimizer_config.fill("lr_decay_iters", lambda: iterations)
        complain(judge(RULES, self))

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Sections by name, options by the names under which users know them; a value that is refused or not known yet
        is None."""
        return {section.name: getattr(self, section.name).to_dict() for section in fields(self)}


def required_to_train(config: AllConfig) -> Iterator[Finding]:
    """A finding for each of these that is missing: the learning rate, and a length of at least one step, which a run
    that only evaluates (--skip-train) does not need. Epochs may leave the number of iterations to the data."""
    training = config.training_config
    if config.optimizer_config.learning_rate is None:
        yield Finding("--lr", None, "must be given", "add it")
    if training.training_iters or training.epochs or training.skip_train:
        return
    if training.train_samples is not None:
        rule = f"must be at least the samples of the first step, {config.batch_sizes.at(0)}"
        yield training.breaks("train_samples", rule, "raise it")
    else:
        yield Finding("--train-iters or --train-samples or --num_train_epochs", None, "must be given", "add it")
