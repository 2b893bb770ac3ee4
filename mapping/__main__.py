"""The entry point of all commands: `megatron-pynative COMMAND ...`, from a clone `python -m mapping COMMAND ...`."""

import runpy
import sys

from mapping.commands import COMMANDS
from parallel_core.system.command_line import program


def usage() -> str:
    """The usage text: every command with what it does, and the way to its options."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {command.does}" for name, command in COMMANDS.items()]
    return "\n".join(
        [f"usage: {program()} COMMAND ...", "", *lines, "", f"{program()} COMMAND --help prints a command's options."]
    )


def main() -> None:
    """Run the command that the command line names, with the rest of it; without one, or with --help or -h in its place,
    print the usage. Raises SystemExit for an unknown command."""
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("-h", "--help"):
        print(usage())
    elif name not in COMMANDS:
        raise SystemExit(f"error: {name}: is no command; choose one of {', '.join(COMMANDS)}")
    else:
        sys.argv[:2] = [sys.argv[0]]
        runpy.run_module(COMMANDS[name].module, run_name="__main__", alter_sys=False)


if __name__ == "__main__":
    main()
