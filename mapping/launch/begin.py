"""One launch: the check of its program and flags, and printing or starting msrun."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from mapping.files import DATA_FLAGS
from mapping.launch.launchers import UNSET, Launch
from mapping.launch.start import start
from mapping.memory import does_not_fit
from mapping.merge import Reading
from mapping.readers.command_line import lacks_value
from mapping.reading import read, run_findings
from parallel_core.data.datasets import check_data
from parallel_core.findings import Finding

_HERE = Path(__file__).resolve()
EXAMPLE = next(
    (place for place in (_HERE.parents[2] / "examples" / "gpt", _HERE.parents[1] / "examples") if place.is_dir()),
    _HERE.parents[2],
).joinpath("pretrain_gpt.py")
"""The program, in a clone or in a wheel, that is started in place of one that is PyTorch's or is not there."""

UNRESOLVED, REFUSED = 1, 2
"""Exit codes: of a launch that is incomplete, or where there is none; of one that training would refuse."""

_OF_PYTORCH = re.compile(
    r"^\s*(?:import|from)\s+(?:torch|torch_npu|megatron|megatron_patch|mindspeed|mindspeed_llm|deepspeed)\b",
    re.MULTILINE,
)
_OF_THE_SHELL = {"PATH", "PWD", "OLDPWD", "SHLVL", "_"}


@dataclass(frozen=True)
class How:
    """The options of `launch` (--print, --check, --program, --end-with-parent), and the folder, environment and streams
    (`output`, `errors`: file descriptors) with which it was called, since a script may send its launcher's output
    elsewhere."""

    only_print: bool = False
    only_check: bool = False
    program: str | None = None
    ends_with_parent: bool = False
    output: int = 1
    errors: int = 2
    folder: str = field(default_factory=os.getcwd)
    environment: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    """The environment variables with which `launch` was called."""

    def write(self, path: Path) -> None:
        """Write this to a file as JSON."""
        path.write_text(json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> How:
        """The options from a file that `write` has written."""
        return cls(**json.loads(path.read_text()))


def begin(launch: Launch, how: How, said: Callable[[int], None] = lambda code: None) -> int:
    """Check a launch, print or start it as `how` says, and return the exit code. The program of a complete launch
    becomes `how.program`; where that is None, `EXAMPLE` in place of a .py file that imports PyTorch, Megatron,
    MindSpeed or DeepSpeed, or that is not there. said: is called after the findings are told and before the command is
    printed or started, with the code of a launch that is not to be started, else with 0.

    The code is `UNRESOLVED` for an incomplete launch: it has findings in `unresolved`, a value of a flag of the program
    is missing or empty, the program is no Python file, or `how.program` is not there. It is `REFUSED` where the program
    is `EXAMPLE` (another's flags are not checked), for flags that training would refuse; unless it is only printed,
    also for files that it would refuse, and for a run that does not fit this host. If it is only checked, findings of
    its reading about a flag in `DATA_FLAGS` do not count. Else the code is 0 for a launch that is only printed or
    checked, or `start`'s.
    """
    unresolved = [*launch.unresolved, *_open_words(launch)]
    notes = [] if unresolved else _choose_program(launch, how.program)
    if not (unresolved or Path(launch.program).is_file()):
        unresolved = [Finding("--program", launch.program, "there is no such file", "give the path of an existing one")]
    if launch.left_out:
        notes.append(f"left out, msrun has nothing for it: {' '.join(launch.left_out)}")
    reading = None if unresolved or Path(launch.program).resolve() != EXAMPLE else _read(launch, how)
    findings = _refused(reading, launch, how) if reading else []
    notes += reading.lines() if reading and how.only_print and not findings else ()
    say(how.errors, (f"launch: {note}" for note in notes))
    say(how.errors, (f"error: {finding}" for finding in [*unresolved, *findings]))
    code = UNRESOLVED if unresolved else REFUSED if findings else 0
    said(code)
    if how.only_print:
        say(how.output, [*_surroundings(how), pretty(words(launch))])
    return code if code or how.only_print or how.only_check else start(words(launch), how.ends_with_parent)


def _choose_program(launch: Launch, wanted: str | None) -> list[str]:
    """Put the program that is to be started into the launch, and return notes for the user about a change. wanted:
    --program."""
    path = Path(launch.program)
    if wanted is not None:
        launch.program = wanted
    elif path.suffix == ".py" and not (path.is_file() and not _OF_PYTORCH.search(path.read_text(errors="replace"))):
        launch.program = str(EXAMPLE)
        why = "is PyTorch's" if path.is_file() else "is not there"
        return [f"{path} {why}: {EXAMPLE} starts in its place; --program names another"]
    return []


def _open_words(launch: Launch) -> Iterator[Finding]:
    """Findings for flags whose value the shell left empty, and for a program that is no Python file, such as a word of
    a longer option."""
    if not (launch.program.endswith(".py") or launch.unresolved):
        yield Finding("the program", launch.program, "is no Python file", "look at the launcher's options before it")
    for flag in lacks_value(launch.arguments):
        yield Finding(flag, None, "has no value", UNSET)


def _read(launch: Launch, how: How) -> Reading:
    """The flags of the launch as training would read them. A program of the user's own may have others, which it alone
    knows."""
    world_size = int(launch.options.get("worker_num", "8"))
    return read(launch.arguments, world_size=world_size, check_files=not how.only_print)


def _refused(reading: Reading, launch: Launch, how: How) -> Sequence[Finding | str]:
    """The findings for which training would refuse the launch."""
    findings = [one for one in reading.findings if not (how.only_check and one.flag in DATA_FLAGS)]
    findings = findings or run_findings(reading)
    if findings or how.only_print:
        return findings
    return [
        *does_not_fit(
            reading.config, int(launch.options.get("local_worker_num", reading.config.parallel_config.world_size))
        ),
        *_of_data(reading),
    ]


def _of_data(reading: Reading) -> Iterator[str]:
    """Messages about mistakes in the data's flags and in the tokenizer's files."""
    try:
        check_data(reading.config)
    except ValueError as error:
        yield str(error)


def words(launch: Launch) -> list[str]:
    """The words of the msrun command of a launch."""
    options = [f"--{name}={value}" for name, value in launch.options.items()]
    return ["msrun", *options, launch.program, *launch.arguments]


def pretty(command: Sequence[str]) -> str:
    """A command as text for a shell; each word that begins with -- or ends in .py begins a line."""
    lines = [shlex.quote(command[0])]
    for word in command[1:]:
        if word.startswith("--") or word.endswith(".py"):
            lines.append(f"    {shlex.quote(word)}")
        else:
            lines[-1] += f" {shlex.quote(word)}"
    return " \\\n".join(lines)


def _surroundings(how: How) -> Iterator[str]:
    """Shell commands for the folder and the variables that the script set before it launched."""
    if os.getcwd() != how.folder:
        yield f"cd {shlex.quote(os.getcwd())}"
    for name, value in os.environ.items():
        if name.isidentifier() and name not in _OF_THE_SHELL and how.environment.get(name) != value:
            yield f"export {name}={shlex.quote(value)}"


def say(descriptor: int, lines: Iterable[str]) -> None:
    """Write lines to a file descriptor, or to this process's error stream if that raises OSError, as it does for a
    closed one."""
    text = "".join(f"{line}\n" for line in lines)
    try:
        os.write(descriptor, text.encode())
    except OSError:
        sys.stderr.write(text)
