"""The way from everything that was given, by any reader, to one configuration."""

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import lcm
from operator import attrgetter
from typing import Any, NamedTuple

from mapping.checks import (
    check_given,
    contradictions,
    demands_are_met,
    instead_of_refused,
    replicas_are_averaged,
    required,
    scales_have_a_type,
    spared_parameters_are_there,
)
from mapping.derive.values import COPIED, field_values
from mapping.derive.vocabulary import unreadable
from mapping.files import missing_files
from mapping.flags import IGNORED, ROWS, Flag
from mapping.given import OTHER_NAMES, ROW_OF, Given
from mapping.naming import as_given
from mapping.outcome import outcome_of
from mapping.readers import checkpoint
from mapping.readers.deepspeed import KEYS, Auto, resolved
from parallel_core.blocks import adapter_findings, recompute_findings
from parallel_core.checkpoint.folders import load_findings, save_findings
from parallel_core.checkpoint.resume import resume_findings
from parallel_core.config import AllConfig
from parallel_core.config.base import Unjudged, Unknown, gather_findings, judge
from parallel_core.config.serialise import build
from parallel_core.config.tree import FLAG_OF, OPTIONS, path_of
from parallel_core.data.epochs import Length, length_of_training
from parallel_core.findings import Finding
from parallel_core.no_effect import beyond_the_stages, without_effect

_ROW = {row.target: row for row in reversed(COPIED)}
"""Path of a field that is copied from an argument -> the row of its own flag."""
_DEST = {path: row.dest for path, row in _ROW.items()} | {
    path_of("model_config.vocab_size"): "padded_vocab_size",
    path_of("model_config.num_layers"): "num_layers",
}
"""Path of a field -> the argument that has the same value."""

_DEFAULTS = {row.dest: row.default for row in reversed(ROWS)}
"""Argument -> its default; where several rows fill it, the first row's."""

_SHOWN = _DEST | {path_of(name): name for name in ("params_dtype", "resume_training")}
"""Path of a field -> the argument that shows the value that the config derived."""
_VALUE_AT = {path: attrgetter(path) for path in _SHOWN}
"""Path of a field -> a function from a config to the field's value."""

_OTHERS = ("optimizer_config", "training_config", "dataset_config")
_BESIDE_THE_MODEL = {FLAG_OF[path] for path in OPTIONS if path.startswith(_OTHERS)}
"""Flags of the sections that describe neither a model nor its layout."""


@dataclass
class Sources:
    """Everything that a user gave, by where it was given: typed flags, a YAML file, files that must agree with the
    flags (`beside`: DeepSpeed's and FSDP2's), DeepSpeed's `defaults`, which count where nothing else is given, and
    attributes that were `changed` later; also the readers' findings, and how to read. Flags win over the YAML file,
    changed attributes over both."""

    typed: list[Given] = field(default_factory=list)
    beside: list[Given] = field(default_factory=list)
    """Values of files that must agree with the flags and the YAML file: DeepSpeed's and FSDP2's."""
    defaults: list[Given] = field(default_factory=list)
    """The defaults of a DeepSpeed file, which count where nothing else is given."""
    yaml: list[Given] = field(default_factory=list)
    changed: list[Given] = field(default_factory=list)
    unread: list[Flag] = field(default_factory=list)
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Attributes of the user's own flags, and defaults that the script sets in place of the table's."""
    autos: list[Auto] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    """The readers' findings."""
    world_size: int | None = None
    """The number of processes; None: the file's, or the fewest that hold the model."""
    rank: int = 0
    read_vocabulary: bool = True
    """Whether the tokenizer's files may be read for the size of the vocabulary."""
    check_files: bool = False
    """Whether files that are named must be there."""
    is_a_file: bool = False
    """Whether a YAML file or a dictionary is read, so that flags which a command line needs may be left out."""
    explains: bool = True
    """Whether options that do nothing in the resulting configuration get the reason."""


@dataclass
class Reading:
    """The outcome of reading everything that was given, whether it is right or wrong: the given values, the arguments,
    the config as far as it can be known, findings, and notes (sentences for the user)."""

    sources: Sources
    given: list[Given]
    """The given values: typed flags in their order, attributes that were changed, keys of files, but for those of YAML
    that a flag replaces, then a checkpoint's that act."""
    args: Namespace
    config: AllConfig
    findings: list[Finding]
    notes: list[str]
    """Sentences for the user, such as those about values that stand for others, values that a checkpoint's replace, and
    the value that each `auto` of a DeepSpeed file got."""

    @property
    def errors(self) -> list[str]:
        """The findings as sentences."""
        return [str(finding) for finding in self.findings]

    def print_notes(self) -> None:
        """On rank 0 print the lines of `lines`; on other ranks do nothing."""
        if self.sources.rank == 0:
            print(*(f"{line}\n" for line in self.lines()), sep="", end="")

    def lines(self) -> Iterator[str]:
        """Lines for the user: those about values that are ignored, then `notes`. A default of a file (`is_default`)
        gets none."""
        asked = [entry for entry in self.given if not entry.is_default]
        silent = [entry for entry in asked if not (entry.reason or entry.replaced)]
        ignored = [entry.name for entry in silent if entry.status == IGNORED]
        if ignored:
            yield f"ignored, the result is the same without: {' '.join(ignored)}"
        yield from (f"ignored: {entry.name}: {entry.reason}" for entry in asked if entry.reason)
        yield from self.notes


class Ranked(NamedTuple):
    """The given values by source, weakest first; of two that fill the same the later one counts, but `said.wins`, of a
    checkpoint, win over all. What `strong` replaces is left out of `of_files`; what `of_files`, `beside` or `strong`
    replace is left out of `defaults` and of what the checkpoint only fills in. beside: those of DeepSpeed's and FSDP2's
    files. findings: about that checkpoint, and about files that contradict."""

    defaults: list[Given]
    of_files: list[Given]
    of_checkpoint: list[Given]
    beside: list[Given]
    strong: list[Given]
    """The user's own flags that are other names, typed flags, and attributes that were changed; where two fill the
    same, the later one counts."""
    said: checkpoint.Said
    findings: list[Finding]

    @property
    def yaml(self) -> list[Given]:
        """The values of YAML files and of the checkpoint."""
        return [*self.of_files, *self.of_checkpoint]

    @property
    def given(self) -> list[Given]:
        """The values of all sources; of two that fill the same the later one counts, but `said.wins` win over all
        others."""
        return [*self.defaults, *self.yaml, *self.beside, *self.strong]


def resolve(sources: Sources) -> Reading:
    """Merge, check and build: the configuration as far as it can be known, and findings. A value that is wrong becomes
    a finding. Raises OSError as `mapping.readers.checkpoint.read`.

    In phases: rank the given values, make arguments of them, judge the words, build the config, judge it, report.
    """
    ranked = _ranked(sources)
    args = _arguments(sources, ranked.given)
    replaced = list(_replaced(ranked.said.wins, [*sources.yaml, *ranked.strong], args))
    vars(args).update((_argument(entry), entry.value) for entry in ranked.said.wins if _argument(entry))
    words = _judge_words(sources, ranked, args)
    config, length, of_config = _built(sources, ranked, args)
    notes, open_ends = resolved(sources.autos, config)
    of_config += judge([partial(replicas_are_averaged, ranked.yaml), partial(demands_are_met, ranked.given)], config)
    if _describes_a_model(args, of_config):
        of_config += judge([spared_parameters_are_there, adapter_findings, recompute_findings], config)
    scales = judge([partial(scales_have_a_type, ranked.strong)], config)
    found = [*words, *length.findings, *of_config, *open_ends, *_judge_files(sources, ranked, args, config), *scales]
    if sources.check_files and sources.rank == 0 and not found:
        found += judge([resume_findings], config)
    found = as_given(found, ranked.given)
    reported = _reported(sources, ranked, args, config, length.reasons, is_wrong=bool(found))
    _fill_in(args, config, ranked.yaml)
    config.outcomes = [vars(outcome_of(entry, config)) for entry in reported]
    replaced += (f"{entry.name} {entry.value}: {entry.replaced}" for entry in ranked.given if entry.replaced)
    notes += [*length.notes, *(beyond_the_stages(config) if sources.explains and not found else ())]
    return Reading(sources, reported, args, config, found, [*replaced, *notes])


def _describes_a_model(args: Namespace, of_config: Sequence[Finding]) -> bool:
    """Whether the model can be laid out: no argument is unknown, and no finding is about its sections or its layout."""
    is_known = Unknown not in map(type, vars(args).values())
    return is_known and all(finding.flag in _BESIDE_THE_MODEL for finding in of_config)


def _ranked(sources: Sources) -> Ranked:
    """The values that count. Flags replace those of files, and both those with which a checkpoint only fills in; a
    checkpoint's others win over all. DeepSpeed's defaults count where nothing else is given."""
    strong = [*_other_names(sources), *sources.typed, *sources.changed]
    said = checkpoint.read([*sources.yaml, *strong])
    yaml = list(_not_taken(sources.yaml, strong))
    beside, disagreeing = _agreeing(sources.beside, [*yaml, *sources.typed])
    stronger = [*yaml, *beside, *strong]
    defaults = list(_not_taken(sources.defaults, stronger))
    of_checkpoint = [*_not_taken(said.fills_in, stronger), *said.wins]
    return Ranked(defaults, yaml, of_checkpoint, beside, strong, said, [*said.findings, *disagreeing])


def _judge_words(sources: Sources, ranked: Ranked, args: Namespace) -> list[Finding]:
    """The findings that need no config, only flags and keys as given; refused values are replaced in `args`."""
    of_flags = [entry for entry in ranked.given if entry.row.name]
    found = [*sources.findings, *ranked.findings, *check_given(args, of_flags)]
    found += () if sources.is_a_file else required(args)
    found += contradictions(args, of_flags)
    vars(args).update(instead_of_refused(of_flags))
    return found


def _built(sources: Sources, ranked: Ranked, args: Namespace) -> tuple[AllConfig, Length, list[Finding]]:
    """The config, the length of the training, and the findings of its sections and rules."""
    values = field_values(args, sources.read_vocabulary, {_argument(entry) for entry in ranked.given})
    values |= {entry.field: entry.value for entry in ranked.yaml if entry.field}
    args.world_size = sources.world_size or values.get(_WORLD) or _smallest_world(values)
    values[_WORLD] = args.world_size
    length = length_of_training(values)
    with gather_findings() as found:
        config = build(values | length.values)
    config.named = {entry.target: entry.name for entry in ranked.given if entry.target}
    return config, length, found


def _judge_files(sources: Sources, ranked: Ranked, args: Namespace, config: AllConfig) -> Iterator[Finding]:
    """Findings about files that are named, as far as they are to be looked at: missing ones, checkpoints to load
    (unless findings about them are there already) and the folder to save to."""
    if sources.check_files:
        of_saves = partial(save_findings, looks_for_others=sources.rank == 0)
        yield from missing_files(args)
        yield from judge([of_saves] if ranked.said.findings else [load_findings, of_saves], config)
    if sources.read_vocabulary:
        yield from judge([partial(unreadable, check_files=sources.check_files)], args)


def _reported(
    sources: Sources, ranked: Ranked, args: Namespace, config: AllConfig, known: Mapping[str, str], *, is_wrong: bool
) -> list[Given]:
    """Everything that was given, with the reason where it does nothing. known: path of a field -> reason."""
    paths = {entry.target for entry in ranked.given}
    reasons = {**(without_effect(config, paths) if sources.explains and not is_wrong else {}), **known}
    acting = [entry for entry in ranked.of_checkpoint if entry.target not in reasons]
    told = [*sources.typed, *sources.changed, *sources.beside, *ranked.defaults, *ranked.of_files, *acting]
    return list(_whole([entry._replace(reason=_reason(entry, reasons, args)) for entry in told]))


def _other_names(sources: Sources) -> Iterator[Given]:
    """The values of the user's own flags that are other names of flags in the table."""
    for name, value in sources.extra.items():
        row = ROW_OF[OTHER_NAMES[name]] if name in OTHER_NAMES else None
        if row is not None and value is not None and value != row.default:
            yield Given(f"--{name.replace('_', '-')}", value, row)


def _not_taken(weak: Sequence[Given], strong: Sequence[Given]) -> Iterator[Given]:
    """The values of `weak` whose argument and field no value of `strong` fills."""
    return (entry for entry in weak if not any(other.replaces(entry) for other in strong))


def _agreeing(beside: Sequence[Given], rest: Sequence[Given]) -> tuple[list[Given], list[Finding]]:
    """The values of files beside the flags that do not contradict `rest`, and a finding for each one that does."""
    others = {entry.field or entry.row.dest: entry for entry in rest if entry.target}
    agreeing, findings = [], []
    for entry in beside:
        other = others.get(entry.row.dest) or others.get(entry.target)
        if other is None or other.value == entry.value:
            agreeing.append(entry)
        else:
            fix = 'change one of them or write "auto"' if entry.name in KEYS else "change one of them"
            rule = f"contradicts {other.name} {other.value}"
            findings.append(Finding(entry.name, str(entry.value), rule, fix, entry.source))
    return agreeing, findings


def _replaced(wins: Sequence[Given], given: Sequence[Given], args: Namespace) -> Iterator[str]:
    """A sentence for each flag and key whose value a checkpoint's replaces (`wins`)."""
    by_target = {entry.field: entry for entry in wins}
    of_flags = field_values(args, False) if wins else {}
    for entry in given:
        other = by_target.get(entry.target)
        value = entry.value if entry.field else of_flags.get(entry.target)
        if other is not None and other.value != value:
            yield f"{entry.name} {entry.value}: {other.source} has {other.value}, which counts (--use-checkpoint-args)"


def _reason(entry: Given, of_fields: Mapping[str, str], args: Namespace) -> str:
    """The reason why a value does nothing: that of its key in a file, of its field, or of its argument beside others;
    "" if it acts."""
    with suppress(Unjudged):
        row = _ROW.get(entry.field, entry.row)
        return entry.reason or of_fields.get(entry.target) or row.why_idle(args)
    return ""


def _whole(given: Sequence[Given]) -> Iterator[Given]:
    """The given values, without the reason of those from a file's key that fills several fields of which another one
    acts."""
    acting = {entry.name for entry in given if entry.source and not entry.reason}
    return (entry._replace(reason="") if entry.source and entry.name in acting else entry for entry in given)


def _argument(entry: Given) -> str:
    return entry.row.dest or _DEST.get(entry.field, "")


def _arguments(sources: Sources, given: Sequence[Given]) -> Namespace:
    """The argument namespace: each argument's default, or the last value that was given; Unknown where it could not be
    read."""
    args = Namespace(rank=sources.rank)
    vars(args).update({**_DEFAULTS, **sources.extra})
    vars(args).update((_argument(entry), entry.value) for entry in given if _argument(entry))
    vars(args).update((row.dest, Unknown()) for row in sources.unread)
    return args


_WORLD = path_of("world_size")


def _smallest_world(values: Mapping[str, Any]) -> int:
    """The fewest processes that hold the model, its experts and a sequence, by the config values (by path)."""

    def size(kind: str, default: int = 1) -> int:
        given = values.get(path_of(f"{kind}_parallel_size"))
        return given if isinstance(given, int) and given > 0 else default

    tensor = size("tensor_model")
    experts = size("expert_model") * size("expert_tensor", tensor)
    return size("pipeline_model") * lcm(tensor * size("context"), experts)


def _fill_in(args: Namespace, config: AllConfig, yaml: Sequence[Given]) -> None:
    """Set arguments that were left open, or that a file gives, to the config's values, as after Megatron's
    validation."""
    by_file = {entry.field for entry in yaml}
    for path, dest in _SHOWN.items():
        if getattr(args, dest) is None or path in by_file:
            value = _VALUE_AT[path](config)
            setattr(args, dest, None if isinstance(value, Unknown) else value)
    args.data_parallel_size = config.parallel_config.data_parallel_size
