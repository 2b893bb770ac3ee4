"""Comparison of the checkpoint of ours that --load names with the configuration, by its manifest.

Checkpoints of other tools are not compared here.
"""

from collections.abc import Iterator
from pathlib import Path

from parallel_core.checkpoint.convert.reader import find_checkpoint, open_checkpoint
from parallel_core.checkpoint.folders import is_first_start
from parallel_core.checkpoint.reader import CheckpointReader, Vocabulary
from parallel_core.checkpoint.schedule import schedule_problems
from parallel_core.config import AllConfig
from parallel_core.costs import StagePlan
from parallel_core.findings import Finding
from parallel_core.optimizer import get_optimizer_param_scheduler
from parallel_core.strictness import STRICTNESS

_MODEL_FIX = "give the flags of the run that saved it (--use-checkpoint-args takes them)"


def resume_findings(config: AllConfig) -> Iterator[Finding]:
    """Findings for differences between a sound configuration and the checkpoint of ours that it loads: settings of the
    network, and weights that the checkpoint lacks or has in another shape, unless --dist-ckpt-strictness lets these
    differ, and the schedule of a run that goes on. No finding about a checkpoint of another tool, or one whose manifest
    cannot be read or has settings that this version does not take; none about weights if the stored ones do not fit the
    stored settings either."""
    checkpoint = config.training_config.checkpoint
    reader = _native(config) if checkpoint.load_checkpoint else None
    if reader is None:
        return
    folder, strictness = str(checkpoint.load_checkpoint), STRICTNESS[checkpoint.dist_ckpt_strictness]
    adapters_begin = config.lora_config.use_lora and not reader.has_adapters
    if strictness.refuses_absent:
        wrong = [*reader.settings_problems(config), *_shape_problems(reader, config, adapters_begin)]
        yield from (Finding("--load", folder, problem, _MODEL_FIX) for problem in wrong)
    weights_alone = checkpoint.begins_anew or checkpoint.no_load_optim or not reader.holds_a_run
    if not (weights_alone or adapters_begin) and config.training_config.training_iters:
        now = get_optimizer_param_scheduler(config).state_dict()
        wrong = schedule_problems(reader.manifest.scheduler, now, config)
        yield from (Finding("--load", folder, problem) for problem in wrong)


def _native(config: AllConfig) -> CheckpointReader | None:
    """A reader of the checkpoint that --load names, if it is one of ours that can be read; None otherwise (loading says
    more)."""
    checkpoint, model = config.training_config.checkpoint, config.model_config
    directory = Path(str(checkpoint.load_checkpoint))
    if checkpoint.convert_from_huggingface or is_first_start(directory, checkpoint):
        return None
    try:
        kind, _ = find_checkpoint(directory, checkpoint.ckpt_step)
        if kind.kind != "native":
            return None
        vocabulary = Vocabulary(model.unpadded_vocab_size, model.vocab_size)
        reader = open_checkpoint(directory, checkpoint.ckpt_step, vocabulary)
        return reader if reader.config else None
    except ValueError:
        return None


def _shape_problems(reader: CheckpointReader, config: AllConfig, adapters_begin: bool) -> list[str]:
    """One sentence, or none, about the weights that the model has and the checkpoint lacks or has in another shape. A
    model of the user's own, which its configuration does not describe, gets none: it is compared once it is built."""
    wanted, found = _misfits(reader, config, adapters_begin)
    if not found or _misfits(reader, reader.config, adapters_begin=True)[1]:
        return []
    first = found[0].partition(";")[0]
    return [f"{len(found)} of the model's {wanted} weights do not fit, the first is {first}"]


def _misfits(reader: CheckpointReader, config: AllConfig, adapters_begin: bool) -> tuple[int, list[str]]:
    """(number of weights of the network that `config` describes, sentences about those that do not fit the checkpoint).
    adapters_begin: adapters are not looked for."""
    stages = range(config.parallel_config.pipeline_model_parallel_size)
    specs = {spec.name: spec for stage in stages for spec in StagePlan(config, stage).parameters}
    wanted = [spec for spec in specs.values() if not (adapters_begin and spec.role == "adapter")]
    return len(wanted), [problem for spec in wanted if (problem := reader.shape_problem(spec.name, spec))]
