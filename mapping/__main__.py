"""`python -m mapping COMMAND ...`: the project's commands."""

from __future__ import annotations

import runpy
import sys

COMMANDS = {
    "evaluate": ("pynative.generation.evaluate", "loss and exact matches of answers in a held file"),
    "generate": ("pynative.generation", "texts from a checkpoint"),
    "tokenize": ("parallel_core.data.tokenizers.tokenize", "ids of texts, and facts about a vocabulary"),
}
"""Name -> the module that is run, which a command alone imports, and what it gives."""


def main() -> None:
    """Run the command that the command line names, with the rest of it."""
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in COMMANDS:
        sys.argv[:2] = [f"python -m mapping {name}"]
        runpy.run_module(COMMANDS[name][0], run_name="__main__", alter_sys=False)
        return
    lines = [f"  {command:<12} {words}" for command, (_, words) in COMMANDS.items()]
    text = "\n".join(["usage: python -m mapping COMMAND ...", "", *lines, "", "COMMAND --help says its options."])
    if name not in ("-h", "--help"):
        raise SystemExit(f"error: {name} is no command; choose one of {', '.join(COMMANDS)}")
    print(text)


if __name__ == "__main__":
    main()
