"""The options of `generate`: a command line is judged, and the checkpoint found, without MindSpore."""

import argparse
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from parallel_core.checkpoint.convert.huggingface.tokenizer import end_ids
from parallel_core.checkpoint.convert.reader import open_checkpoint
from parallel_core.config import AllConfig
from parallel_core.config.dataset import TokenizerConfig
from parallel_core.config.serialise import config_for_inference
from parallel_core.data.instruction.chat import Chat
from parallel_core.data.instruction.templates import OWN_TEMPLATE, TABLE, load_template
from parallel_core.data.prompts import Prompt, read_prompts
from parallel_core.data.tokenizers import MegatronTokenizer, has_tokenizer
from parallel_core.data.tokenizers.command_line import add_tokenizer_flags
from parallel_core.findings import ConfigError, Finding
from parallel_core.sampling import Asked, Sampling
from parallel_core.system.command_line import command_line, program
from parallel_core.system.environment import is_on_cpu, number_of

DESCRIPTION = """Continue texts with a model from a checkpoint: what --save was, a folder of Megatron-LM's or of
HuggingFace's.

    python -m mapping generate --load output --prompt "def " --max-new-tokens 100 --temperature 0.8
    python -m mapping generate --load Qwen2.5-0.5B-Instruct --chat
    python -m mapping generate --load output --prompts prompts.jsonl --json

One process, whatever number of them trained the model; or as many as msrun starts, with the sizes of the layout. Model
and tokenizer are the checkpoint's. Where there is no tokenizer, and none is named by flags, prompts are ids."""

SAMPLING: dict[str, tuple[type, str]] = {
    "--temperature": (float, "0: always the likeliest token; else its logits are divided by this"),
    "--top-k": (int, "draw from the k likeliest tokens; 0: from all"),
    "--top-p": (float, "draw from the likeliest tokens of this probability; 0: from all"),
    "--repetition-penalty": (float, "divides the logits of tokens that a text has already; 1: none"),
    "--seed": (int, "of the draws"),
}
LAYOUT = ("--tensor-model-parallel-size", "--pipeline-model-parallel-size", "--expert-model-parallel-size")
TOKENIZER = ("tokenizer_type", "tokenizer_model", "vocab_file", "merge_file", "tokenizer_kwargs")


def parse(argv: list[str] | None, called: str | None = None) -> argparse.Namespace:
    """The options of the command line. argv: its words; None: those of this process. called: the program's name in its
    help; None: that of `generate`."""
    parser = command_line(DESCRIPTION, called or program("generate"))
    parser.add_argument("--load", type=Path, required=True, help="the checkpoint")
    given = parser.add_mutually_exclusive_group()
    given.add_argument("--prompt", help="the text to continue, with --chat what is asked")
    prompts = 'a file with {"text": ...}, {"ids": [...]} or {"messages": [...]} in each line'
    given.add_argument("--prompts", type=Path, help=prompts)
    parser.add_argument("--chat", action="store_true", help="by the chat template; without a prompt line by line")
    parser.add_argument("--prompt-type", help="a template of fine-tuning instead of the tokenizer's chat template")
    parser.add_argument("--prompt-type-path", type=Path, default=TABLE, help="JSON of templates of your own")
    parser.add_argument("--json", action="store_true", help='print {"ids", "text", "logprobs"} of what follows each')
    parser.add_argument("--max-new-tokens", type=int, default=100, help="how many follow at most")
    for flag, (kind, words) in SAMPLING.items():
        parser.add_argument(flag, type=kind, default=_default(flag), help=words)
    parser.add_argument("--stop", action="append", default=[], metavar="WORD", help="ends a text; may come again")
    parser.add_argument("--batch-size", type=int, default=8, help="prompts of a file at a time")
    parser.add_argument("--no-cache", action="store_true", help="compute every token from the whole text")
    add_model_flags(parser)
    return parser.parse_args(argv)


def add_model_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that `configured` reads besides --load, and flags of tokenizers that have no effect."""
    for flag in LAYOUT:
        parser.add_argument(flag, type=int, default=1, help="as in training; msrun starts the ranks")
    types = ("float32", "bfloat16", "float16")
    parser.add_argument("--dtype", choices=types, help="by default float32 on a CPU, else the checkpoint's")
    parser.add_argument("--device-target", choices=("CPU", "Ascend"), help="by default an Ascend if there is one")
    parser.add_argument("--threads", type=int, help="of a process on a CPU; by default its share of the cores")
    add_tokenizer_flags(parser, leave_out="--vocab-size")  # the model gives the size


def _default(flag: str) -> Any:
    return getattr(Sampling(), flag[2:].replace("-", "_"))


def _value(options: argparse.Namespace, flag: str) -> Any:
    return getattr(options, flag[2:].replace("-", "_"))


def configured(options: argparse.Namespace) -> AllConfig:
    """The configuration for inference of this rank: the checkpoint's, with the layout, type (float32 on a CPU without
    --dtype), device and threads of the flags, and with the options of `tokenizer_of` in place of the checkpoint's.
    Raises ValueError if there is no checkpoint, its settings are damaged, or flags and model do not fit, OSError if
    the folder, the file that names the latest iteration, or another tool's file cannot be read."""
    dtype = options.dtype or ("float32" if is_on_cpu(options.device_target) else None)
    layout = {flag[2:].replace("-", "_"): _value(options, flag) for flag in LAYOUT}
    process = {"device_target": options.device_target, "threads": options.threads}
    return config_of(
        options.load,
        dtype,
        tokenizer_of(options),
        world_size=number_of("RANK_SIZE", default=1),
        **layout,
        **process,
    )


def tokenizer_of(options: argparse.Namespace) -> dict[str, Any]:
    """Options of the data section: the tokenizer's type, model, vocabulary, merges and kwargs, as far as flags give
    them. With --patch-tokenizer-type they are made those of the HuggingFace tokenizer in --tokenizer-model, or else in
    --load; so they are if no flag gives a type, a vocabulary or merges, and that folder has a tokenizer. The entry
    "tokenizer" has the tokenizer's own settings that flags give. Raises ValueError for a damaged file of settings that
    it reads in that folder (it reads none beside a tokenizer.json)."""
    named = _given(options, TOKENIZER)
    folder = Path(named.get("tokenizer_model", options.load))
    if options.patch_tokenizer_type is not None:
        named = {"tokenizer_model": str(options.load), **named, "tokenizer_type": "PretrainedFromHF"}
    elif not named.keys() & {"tokenizer_type", "vocab_file", "merge_file"} and has_tokenizer(folder):
        named = {**named, "tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": str(folder)}
    return {**named, "tokenizer": _given(options, [setting.name for setting in fields(TokenizerConfig)])}


def _given(options: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(options, name, None)) is not None}


def asked_of(options: argparse.Namespace, ends: frozenset[int]) -> Asked:
    """The way in which each prompt is continued, from the options; ends: ids that end a text. Raises ConfigError for
    values out of range (--batch-size, too) and an empty stop word."""
    counts = ("--max-new-tokens", "--batch-size")
    found = [
        Finding(flag, _value(options, flag), "must be at least 1", "change it")
        for flag in counts
        if _value(options, flag) < 1
    ]
    if "" in options.stop:
        found.append(Finding("--stop", '""', "must be a word", "leave it out"))
    if found:
        raise ConfigError(found)
    sampling = Sampling(**{flag[2:].replace("-", "_"): _value(options, flag) for flag in SAMPLING})
    return Asked(options.max_new_tokens, sampling, ends, not options.no_cache)


def prompts_of(options: argparse.Namespace) -> list[Prompt]:
    """The prompts that the command line gives; without any an empty list for an interactive chat (--chat in one process
    and without --json), else ConfigError is raised, as for a file of prompts that cannot be read, has a wrong line or
    has no prompt."""
    if options.prompts is not None:
        return read_prompts(options.prompts)
    if options.prompt is not None:
        message = {"role": "user", "content": options.prompt}
        return [Prompt(messages=(message,)) if options.chat else Prompt(text=options.prompt)]
    if options.chat and not options.json and number_of("RANK_SIZE", default=1) == 1:
        return []
    rule = "must be given, or --prompts; --chat alone is for one process that prints text"
    raise ConfigError([Finding("--prompt", None, rule, "add it")])


def template_of(options: argparse.Namespace, tokenizer: MegatronTokenizer) -> Chat | None:
    """The chat template of --prompt-type; None without it, or for the tokenizer's own. Its stop words are added to the
    tokenizer. Raises ValueError for an unknown or damaged template, for one that does not suit the tokenizer, and for
    --prompt-type beside --prompt without --chat: then the prompt is no message."""
    if options.prompt_type is None:
        return None
    if options.prompt is not None and not options.chat:
        raise ConfigError([Finding("--prompt-type", options.prompt_type, "writes messages of a chat", "add --chat")])
    if options.prompt_type == OWN_TEMPLATE:
        return None
    return Chat(load_template(options.prompt_type, options.prompt_type_path), tokenizer)


def ends_of(config: AllConfig, tokenizer: MegatronTokenizer, folder: Path) -> frozenset[int]:
    """The ids that end a text: the tokenizer's end of document, and those in the generation_config.json of `folder` and
    in that of the folder that is the configuration's `tokenizer_model`, where there are such files; empty if `config`
    names no tokenizer. Raises ValueError for such a file that is no JSON object, OSError for one that cannot be
    read."""
    data = config.dataset_config
    if not data.tokenizer_type:
        return frozenset()
    eod = tokenizer.facts.eod
    said = end_ids(folder) | (end_ids(Path(data.tokenizer_model)) if data.tokenizer_model else frozenset())
    return said | (frozenset() if eod is None else {eod})


def config_of(
    folder: Path, dtype: str | None = None, tokenizer: dict[str, Any] | None = None, **parallel: int | str | None
) -> AllConfig:
    """The configuration for inference of the model in a checkpoint of any tool, and of its tokenizer.

    dtype: of parameters and of what is computed, instead of the checkpoint's. tokenizer: options of the data section
    that replace the checkpoint's, one by one; so do those in its entry "tokenizer". parallel: options of
    ParallelConfig. Raises ValueError if there is no checkpoint, its settings are damaged, the options do not fit the
    model, or some of `tokenizer` describe one whose type neither they nor the checkpoint say; OSError if the folder,
    the file that names the latest iteration, or another tool's file cannot be read.
    """
    sections = open_checkpoint(folder, optimizer=False).manifest.config
    data, given = sections.get("dataset_config", {}), tokenizer or {}
    settings = {**data.get("tokenizer", {}), **given.get("tokenizer", {})}
    sections["dataset_config"] = merged = {**data, **given, "tokenizer": settings}
    if not merged.get("tokenizer_type") and (named := [name for name in TOKENIZER if given.get(name) is not None]):
        rule, fix = "is of a tokenizer whose type neither flags nor the checkpoint say", "add --tokenizer-type"
        raise ConfigError([Finding(f"--{name.replace('_', '-')}", given[name], rule, fix) for name in named])
    return config_for_inference(sections, dtype=dtype, **parallel)
