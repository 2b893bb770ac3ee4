"""The program that a script starts as `torchrun`, `python`, `srun` ... while `launch` runs it.

A call that launches training becomes a launch by msrun; any other call of python is passed on to the real python. This
file is run by its path, and imports nothing of ours for such a call, so that it stays fast.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from mapping.launch.launchers import Launch

PYTHONS = ("python", "python3")
NAMES = (*PYTHONS, "torchrun", "deepspeed", "srun", "msrun")
HOW, CODES = "how.json", "codes"
"""Names of files beside the stand-ins: the options of `launch`, and the code that `begin` says of each launch."""
IN_SRUN = "MEGATRON_LAUNCH_IN_SRUN"
"""Name of the environment variable that is set for programs that srun starts."""
LEFT_OUT = "MEGATRON_LAUNCH_LEFT_OUT"
"""Name of the environment variable that has those options of an srun for which msrun has nothing."""


def split(words: Sequence[str]) -> tuple[str, list[str]]:
    """The module or file that a python command line runs, and the words behind it; "" and no words for one that runs
    code, the standard input, or nothing. Of options before it only -W and -X may have a value in a word of its own, and
    -m and -c must be words of their own."""
    position = 0
    while position < len(words) and words[position].startswith("-") and words[position] not in ("-", "-m", "-c"):
        position += 2 if words[position] in ("-W", "-X") else 1
    if words[position : position + 1] == ["-m"]:
        position += 1
    rest = list(words[position:])
    return ("", []) if not rest or rest[0].startswith("-") else (rest[0], rest[1:])


def launched_by(name: str, words: Sequence[str]) -> tuple[str, list[str]] | None:
    """(Name of the launcher that a command is, the words for it). `python` and `python3` are torchrun with -m
    torch.distributed.run or .launch, srun with a .py file inside of an srun of several tasks; None for any other call
    of these. Any other name, and its words, stay as they are."""
    if name not in PYTHONS:
        return name, list(words)
    target, rest = split(words)
    if target in ("torch.distributed.launch", "torch.distributed.run"):
        return "torchrun", rest
    if target.endswith(".py") and IN_SRUN in os.environ and _several_tasks():
        return "srun", [target, *rest]
    return None


def _several_tasks() -> bool:
    return {os.environ.get("SLURM_NNODES"), os.environ.get("SLURM_NTASKS_PER_NODE")} != {"1"}


def real(name: str, folder: str) -> str:
    """The path of the program `name` on the PATH without the stand-ins' folder; exits with 127 and a message where
    there is none."""
    found = shutil.which(name, path=_without(folder))
    if found is None:
        print(f"{name}: command not found", file=sys.stderr)
        sys.exit(127)
    return found


def _without(folder: str) -> str:
    return os.pathsep.join(entry for entry in os.environ["PATH"].split(os.pathsep) if entry != folder)


def main(path: str, words: Sequence[str]) -> int:
    """Do what the stand-in at `path` was called for with `words`, and return the exit code. A python that launches
    nothing becomes the real one, and an srun with nothing unresolved the program that it starts; neither returns.
    Raises OSError if that program cannot be run, SystemExit if there is no real python, or no msrun."""
    folder, name = os.path.split(path)
    launch = launched_by(name, words)
    if launch is None:
        found = real(name, folder)
        os.execv(found, [found, *words])  # by its full path: python finds its packages by it
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    from mapping.launch.launchers import LAUNCHERS, enter_srun

    if name == "srun":
        inside = enter_srun(words, os.environ)
        if not inside.unresolved:
            os.environ |= inside.options | {IN_SRUN: "yes", LEFT_OUT: " ".join(inside.left_out)}
            os.execvp(inside.program, [inside.program, *inside.arguments])
        return in_script(inside, folder)
    os.environ["PATH"] = _without(folder)
    return in_script(LAUNCHERS[launch[0]](launch[1], os.environ), folder)


def in_script(launch: Launch, folder: str) -> int:
    """Print or start a launch of a script, from which an srun around it may have left out options (`LEFT_OUT`), and
    return the exit code of `begin`. The code that `begin` gives to `said`, before the command is printed or started, is
    appended to the file CODES in the stand-ins' `folder`. If launches are only printed, the script, and this process
    with it, is then ended by SIGTERM."""
    from dataclasses import replace
    from pathlib import Path

    from mapping.launch.begin import How, begin

    launch.left_out[:0] = os.environ.pop(LEFT_OUT, "").split()
    how = replace(How.read(Path(folder, HOW)), ends_with_parent=_in_foreground())

    def note(code: int) -> None:
        with open(Path(folder, CODES), "a") as codes:
            codes.write(f"{code}\n")

    code = begin(launch, how, note)
    if how.only_print:
        os.killpg(os.getsid(0), signal.SIGTERM)  # commands after the training must not run without it
    return code


def _in_foreground() -> bool:
    """Whether the shell waits for this process; one that is started with `&` ignores Ctrl-C, and outlives the shell."""
    return signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


def end(code: int) -> NoReturn:
    """End this process with an exit code; with 130, which means Ctrl-C, by SIGINT, so that a shell that waits for it
    ends its script."""
    if code == 128 + signal.SIGINT:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    sys.exit(code)


if __name__ == "__main__":
    end(main(sys.argv[1], sys.argv[2:]))
