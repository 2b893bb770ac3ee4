"""The run of a script with stand-ins for its launchers first on the PATH."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psutil

from mapping.launch import stand_in
from mapping.launch.begin import UNRESOLVED, How, say
from mapping.launch.launchers import LAUNCHERS, SRUN, take_apart, tasks
from mapping.launch.start import INTERRUPTED, end_with_parent, of_shell

_BY_PATH = re.compile(r"\S*bin/(?:torchrun|deepspeed|srun)\b")
_MODULE = re.compile(r"(\S+)(?:\s+-\w+)*\s+-m\s*torch\.distributed\.(?:run|launch)\b")
_PATH_OR_VARIABLE = re.compile(r".*/.*|[\"']?\$\{?\w+\}?[\"']?")
_SBATCH = re.compile(r"^#SBATCH\s+(.*)$", re.MULTILINE)
_ASKS_FOR_SRUN = re.compile(r"\b(?:which|type|hash|command -v)\s+srun\b")
_PLACEHOLDER = re.compile(r"<[^>]*>")


def run(script: Path, arguments: Sequence[str], how: How) -> int:
    """Run a script by bash, and return its exit code, or the largest code of launches that were not started, if any;
    UNRESOLVED if it launches nothing; INTERRUPTED after Ctrl-C. A script is not run, and the code is UNRESOLVED, if
    outside of comment lines it names torchrun, deepspeed or srun by a path with bin/, or torch's launcher behind a
    python that is a path or a variable: no stand-in would take their place.

    To print only, the script runs until its first launch and is ended there; the code is that of `begin` for it.
    """
    text = script.read_text(errors="replace")
    if unseen := list(_unseen(text)):
        fix = "no stand-in takes its place; write its name alone"
        say(how.errors, [f"error: {script}:{place}: {fix}" for place in unseen])
        return UNRESOLVED
    how = replace(how, output=os.dup(how.output), errors=os.dup(how.errors))
    with _stand_ins(how, _names(text)) as folder:
        environment = os.environ | _of_sbatch(text) | {"PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
        process = subprocess.Popen(
            ["bash", str(script), *arguments],
            env=environment,
            stdout=how.errors if how.only_print else None,
            pass_fds=(how.output, how.errors),
            start_new_session=how.only_print,
            preexec_fn=end_with_parent,
        )
        try:
            code = process.wait()
        except KeyboardInterrupt:  # the terminal interrupts the script, too
            if how.only_print:
                os.killpg(process.pid, signal.SIGTERM)
            process.wait()
            return INTERRUPTED
        codes = [int(line) for line in (folder / stand_in.CODES).read_text().split()]
    if not codes:
        names = ", ".join([*LAUNCHERS, "python -m torch.distributed.run"])
        say(how.errors, [f"error: {script}: ended with {code} and has launched nothing by {names}"])
    if how.only_print or not codes or any(codes):
        return max(codes, default=UNRESOLVED)
    return of_shell(code)


def _unseen(text: str) -> Iterator[str]:
    """Calls, with the numbers of their lines, for which no stand-in would be found: of a launcher by its path, and of
    torch's launcher by a python that is named by a path or a variable."""
    for number, line in enumerate(text.split("\n"), 1):
        if not line.lstrip().startswith("#"):
            called = [found[0] for found in _BY_PATH.finditer(line)]
            called += [found[0] for found in _MODULE.finditer(line) if _PATH_OR_VARIABLE.fullmatch(found[1])]
            yield from (f"{number}: {words}" for words in called)


def _names(text: str) -> list[str]:
    """Names of the commands for which a script gets stand-ins; without srun if the script asks whether that is there,
    and it is not."""
    asks = _ASKS_FOR_SRUN.search(text) and shutil.which("srun") is None
    return [name for name in stand_in.NAMES if not (asks and name == "srun")]


@contextmanager
def _stand_ins(how: How, names: Iterable[str]) -> Iterator[Path]:
    """A folder with a stand-in for each of these commands. It is removed afterwards, unless something that the script
    left running may use it."""
    folder = Path(tempfile.mkdtemp(prefix="megatron-launch-"))
    how.write(folder / stand_in.HOW)
    (folder / stand_in.CODES).touch()
    command = shlex.join([sys.executable, stand_in.__file__])
    for name in names:
        (folder / name).write_text(f'#!/bin/sh\nexec {command} "$0" "$@"\n')
        (folder / name).chmod(0o755)
    try:
        yield folder
    finally:
        paths = ((process.info["environ"] or {}).get("PATH", "") for process in psutil.process_iter(["environ"]))
        if not any(str(folder) in path for path in paths):
            shutil.rmtree(folder)


def _of_sbatch(text: str) -> dict[str, str]:
    """Slurm's variables as `sbatch` sets them for the #SBATCH lines of a script; a variable of the environment goes
    before."""
    options: dict[str, str] = {}
    for line in _SBATCH.findall(text):
        options |= take_apart(shlex.split(_PLACEHOLDER.sub("", line), comments=True), SRUN)[0]
    return {name: os.environ.get(name, value) for name, value in tasks(options, {}).items()} if options else {}
