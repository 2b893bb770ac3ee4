"""Start a Megatron launch script with msrun in place of its launcher.

    python -m mapping launch SCRIPT.sh [ARGUMENTS]            run the script
    python -m mapping launch --print SCRIPT.sh [ARGUMENTS]    only print the msrun command
    python -m mapping launch msrun|torchrun|deepspeed ...     one launch, without a script
    python -m mapping launch --check msrun ...                only check its flags and files

The script is run by bash, as ever: its commands run, `mkdir`, `rm` and calls of python included, and its conditions and
loops decide. Stand-ins on the PATH take the place of torchrun, deepspeed, srun, msrun and `python -m
torch.distributed.run` (or `.launch`): a launch of training by them, by srun one of several tasks, starts msrun with as
many processes, the program and its arguments. With --print the commands up to the first launch run as well; there the
script is ended.

Without --program, a program whose file imports PyTorch, Megatron, MindSpeed or DeepSpeed, or that is not there, is
replaced by examples/gpt/pretrain_gpt.py, whose flags are checked before msrun is started. Exit code: the script's, or
msrun's of one launch; 0 for one that is only printed or checked; 1 for one that is incomplete, or if there is none; 2
for one that training would refuse, and for wrong arguments.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from mapping.launch.begin import How, begin
from mapping.launch.launchers import LAUNCHERS
from mapping.launch.script import run
from mapping.launch.stand_in import end, launched_by
from parallel_core.system.command_line import command_line, program


def main(argv: Sequence[str]) -> int:
    parser = command_line(
        __doc__, program("launch"), "%(prog)s [--print | --check] [--program FILE.py] SCRIPT.sh [ARGUMENTS]"
    )
    parser.add_argument(
        "--print", action="store_true", help="print the msrun command of the first launch, train nothing"
    )
    parser.add_argument(
        "--check", action="store_true", help="only check a launch's flags and files; the data's may be made later"
    )
    parser.add_argument("--program", metavar="FILE.py", help="start this program instead of the script's")
    parser.add_argument(
        "--end-with-parent", action="store_true", help="end, as by SIGTERM, when the process that started this one has"
    )
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, help="the script with its arguments, or a launcher's command"
    )
    options = parser.parse_args(argv)
    replacement = options.program and os.path.abspath(options.program)
    how = How(options.print, options.check, replacement, options.end_with_parent)
    if not options.command:
        parser.error("SCRIPT.sh: must be given")
    first, *rest = options.command
    name, words = launched_by(first, rest) or ("", [])
    if name in LAUNCHERS and name != "srun":
        return begin(LAUNCHERS[name](words, os.environ), how)
    if first.endswith(".py") or not Path(first).is_file():
        parser.error(f"{first}: is no shell script, and no launcher that is known here")
    if options.check:
        parser.error("--check: takes a launcher's command; --print checks a script's flags")
    return run(Path(first), rest, how)


if __name__ == "__main__":
    end(main(sys.argv[1:]))
