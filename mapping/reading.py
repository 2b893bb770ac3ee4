"""The way from the words of a command line, with the files that it names, to a configuration."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from mapping.given import Given
from mapping.merge import Reading, Sources, resolve
from mapping.naming import as_given
from mapping.readers import deepspeed, fsdp2, yaml_file
from mapping.readers.command_line import CommandLine, ExtraArgs, rank_of_environment, scan, world_size_of_environment
from parallel_core.checkpoint.convert.huggingface.write import huggingface_findings
from parallel_core.config.all import required_to_train
from parallel_core.findings import Finding


def read(
    argv: Sequence[str] | None = None,
    extra_args_provider: ExtraArgs | None = None,
    world_size: int | None = None,
    args_defaults: Mapping[str, Any] | None = None,
    check_files: bool = False,
    read_vocabulary: bool | None = None,
    explains: bool = True,
) -> Reading:
    """The reading of a command line, by default the process's own, without raising for what it says: the config as far
    as it can be known, and findings. Parameters without a word here are those of `mapping.arguments.parse_args`.
    `check_files`: the tokenizer's, the data's and the checkpoint's files must be there; in msrun's scheduler it
    counts as false. `read_vocabulary`: whether the tokenizer's files are read for the size of the vocabulary; by
    default as `check_files`. `explains`: whether options that do nothing get the reason. Raises ValueError where a
    launcher's rank, or needed job size, is no whole number from 0 on, OSError as `mapping.merge.resolve`.
    """
    rank = rank_of_environment()
    check_files = check_files and rank >= 0  # msrun's scheduler, rank -1, may read after the ranks have saved
    line = scan(sys.argv[1:] if argv is None else argv, extra_args_provider, args_defaults)
    yaml: list[Given] = []
    yaml_findings: list[Finding] = []
    path_of_json, of_json = _deepspeed_file(line)
    path_of_yaml = _path(line, "yaml_cfg")
    said = deepspeed.DeepSpeed.empty() if path_of_json is None else deepspeed.read(path_of_json)
    if path_of_yaml is not None:
        yaml, yaml_findings = yaml_file.read(path_of_yaml)
    of_fsdp2, fsdp2_findings = fsdp2.read(_path(line, "fsdp2_config_path"))
    return resolve(
        Sources(
            typed=line.given,
            beside=[*said.given, *of_fsdp2],
            defaults=said.defaults,
            yaml=yaml,
            unread=line.unread,
            extra=line.extra,
            autos=said.autos,
            findings=[*line.findings, *of_json, *said.findings, *fsdp2_findings, *yaml_findings],
            world_size=world_size or world_size_of_environment() or (1 if path_of_yaml is None else None),
            rank=rank,
            read_vocabulary=check_files if read_vocabulary is None else read_vocabulary,
            check_files=check_files,
            is_a_file=path_of_yaml is not None,
            explains=explains,
        )
    )


def _deepspeed_file(line: CommandLine) -> tuple[str | None, list[Finding]]:
    """The path of DeepSpeed's file, by either of its flags (None: not given), and findings about these flags."""
    path, listed = _path(line, "deepspeed_config"), _path(line, "deepspeed")
    named = {path, *(listed or ())} - {None}
    if listed is None or len(named) == 1:
        return next(iter(named), None), []
    rule = "needs the path of one configuration file, here or at --deepspeed-config"
    return None, [Finding("--deepspeed", " ".join(listed) or None, rule, "say it once")]


def _path(line: CommandLine, argument: str) -> Any:
    """The value of an argument that names a configuration file: the last one typed, else the script's default."""
    typed = (entry.value for entry in reversed(line.given) if entry.row.dest == argument)
    return next(typed, line.extra.get(argument))


def run_findings(reading: Reading) -> list[Finding]:
    """Findings about a legal config that stop a run: a learning rate that is missing, a training without a step
    (unless it only evaluates, --skip-train), and with --enable-mg2hf-convert a model that no known family of
    HuggingFace has, or not that of --model-type-hf."""
    findings = [*required_to_train(reading.config), *huggingface_findings(reading.config)]
    return as_given(findings, reading.given)


def stops(reading: Reading) -> list[Finding]:
    """The findings that keep the run from starting: the reading's, or if it has none, `run_findings`."""
    return reading.findings or run_findings(reading)
