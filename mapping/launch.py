"""From a Megatron launch script to `msrun`: `python -m mapping.launch SCRIPT.sh [--run] [--program FILE.py]`.

Reads a script that starts training by `torchrun` or `python -m torch.distributed.launch` and prints the `msrun` command
with the same training arguments. The script itself is not executed; what cannot be resolved by reading is named.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from mapping.readers.shell import UNKNOWN, read_script

LAUNCHERS = ("torch.distributed.launch", "torch.distributed.run")

OPTIONS = {
    "nproc_per_node": 1,
    "nnodes": 1,
    "node_rank": 1,
    "master_addr": 1,
    "master_port": 1,
    "rdzv_endpoint": 1,
    "rdzv_id": 1,
    "rdzv_backend": 1,
    "rdzv_conf": 1,
    "max_restarts": 1,
    "monitor_interval": 1,
    "log_dir": 1,
    "redirects": 1,
    "tee": 1,
    "role": 1,
    "start_method": 1,
    "standalone": 0,
    "use_env": 0,
    "no_python": 0,
}
"""Options of the launcher, with how many values each takes."""

WITHOUT_EQUIVALENT = (
    "max_restarts",
    "monitor_interval",
    "redirects",
    "tee",
    "role",
    "start_method",
    "no_python",
    "rdzv_conf",
)


class Launch(NamedTuple):
    """A launcher's options and what it starts."""

    options: dict[str, str]
    program: str
    arguments: list[str]


def find_launches(commands: Sequence[Sequence[str]]) -> Iterator[Launch]:
    """The commands that start several processes, in order."""
    for words in commands:
        for position, word in enumerate(words):
            module = word == "-m" and position + 1 < len(words) and words[position + 1] in LAUNCHERS
            if module or Path(word).name == "torchrun":
                yield _launch(list(words[position + (2 if module else 1) :]))
                break


def _launch(words: list[str]) -> Launch:
    options: dict[str, str] = {}
    while words and words[0].startswith("-"):
        name, equals, value = words.pop(0).lstrip("-").partition("=")
        name = name.replace("-", "_")
        if not equals and OPTIONS.get(name, 1):
            value = words.pop(0) if words else ""
        options[name] = value
    program = words.pop(0) if words else ""
    end = next(
        (
            index
            for index, word in enumerate(words)
            if word in ("|", "&", "&&", "||") or word[:1] == ">" or word[:2] in ("2>", "1>", "&>")
        ),
        len(words),
    )
    return Launch(options, program, words[:end])


def msrun(launch: Launch, program: str | None = None) -> list[str]:
    """The words of the `msrun` command that starts the same processes."""
    nodes, local = launch.options.get("nnodes", "1"), launch.options.get("nproc_per_node", "1")
    address, _, port = launch.options.get("rdzv_endpoint", "").partition(":")
    words = [
        "msrun",
        f"--worker_num={int(nodes) * int(local)}",
        f"--local_worker_num={local}",
        f"--master_addr={launch.options.get('master_addr', address or '127.0.0.1')}",
        f"--master_port={launch.options.get('master_port', port or '8118')}",
    ]
    if int(nodes) > 1:
        words.append(f"--node_rank={launch.options.get('node_rank', '-1')}")
    return [
        *words,
        f"--log_dir={launch.options.get('log_dir', 'msrun_log')}",
        "--join=True",
        program or launch.program,
        *launch.arguments,
    ]


def complaints(launch: Launch) -> list[str]:
    """What of the launcher's options does not carry over."""
    unknown = [f"--{name}: is no option of the launcher that is known here" for name in launch.options.keys() - OPTIONS]
    lost = [
        f"--{name}: has no equivalent in msrun, it is left out" for name in WITHOUT_EQUIVALENT if name in launch.options
    ]
    wrong = [
        f"--{name} {launch.options[name]}: is not a number"
        for name in ("nnodes", "nproc_per_node")
        if not launch.options.get(name, "1").isdigit()
    ]
    return sorted(unknown) + lost + wrong


def translate(text: str, environment: Mapping[str, str], program: str | None = None) -> tuple[list[str], list[str]]:
    """The `msrun` words for a script's text, none if there is no launcher, and what could not be resolved."""
    script = read_script(text, environment)
    launches = [*find_launches(script.commands)]
    if not launches:
        return [], ["no torchrun and no python -m torch.distributed.launch in the script"]
    launch, *others = launches
    notes = [f"{other.program}: is launched after the first program, it is left out" for other in others]
    notes += [note for note in script.unresolved if _matters(note, launch)] + complaints(launch)
    if any(note.endswith("is not a number") for note in notes):
        return [], notes
    return msrun(launch, program), notes


def _matters(note: str, launch: Launch) -> bool:
    """Whether an open end is in the command, or decides a value that is."""
    words = [*launch.options.values(), launch.program, *launch.arguments]
    return "depends on a condition" in note or any(UNKNOWN in word for word in words)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m mapping.launch",
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("script", type=Path)
    parser.add_argument("--run", action="store_true", help="start it instead of only printing it")
    parser.add_argument("--program", help="start this Python file instead of the script's")
    options = parser.parse_args(argv)
    if not options.script.is_file():
        parser.error(f"{options.script}: there is no such file")
    words, notes = translate(options.script.read_text(encoding="utf-8"), os.environ, options.program)
    print(*(f"not resolved: {note}" for note in notes), sep="\n", file=sys.stderr, end="\n" if notes else "")
    if not words:
        return 2
    print(pretty(words))
    if options.run and any(UNKNOWN in word for word in words):
        parser.error(f"--run: not started, {UNKNOWN} stands for what could not be resolved; set it in the environment")
    if options.run:
        os.execvp(words[0], words)
    return 0


def pretty(words: Sequence[str]) -> str:
    """One option a line, ready for a shell."""
    lines = [shlex.quote(words[0])]
    for word in words[1:]:
        if word.startswith("--") or word.endswith(".py"):
            lines.append(f"    {shlex.quote(word)}")
        else:
            lines[-1] += f" {shlex.quote(word)}"
    return " \\\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
