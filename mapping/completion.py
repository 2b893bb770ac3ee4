"""`python -m mapping completion bash|zsh`: a completion script for the shell.

    eval "$(megatron-pynative completion bash)"    in ~/.bashrc; zsh the same, in ~/.zshrc

It completes commands, their options, Megatron's flags behind `--` and behind `launch`, and files where no such word
fits.
"""

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from mapping.commands import COMMANDS
from mapping.flags import BY_NAME
from parallel_core.system.command_line import DISTRIBUTION, command_line, program

BASH = """_{function}() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} words
    case " ${{COMP_WORDS[*]:1:COMP_CWORD-1}} " in
        *" -- "*) words="{flags}" ;;
{cases}
        *) words="{commands}" ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _{function} {program}"""
ZSH = "autoload -U +X bashcompinit && bashcompinit"
"""The line for zsh, by which it runs bash's completion functions."""


def options_of(command: str) -> list[str]:
    """The words with two dashes in the --help of a command of the entry point, its options and others that the text
    names, sorted, each once. Raises CalledProcessError for a command that does not exist."""
    done = subprocess.run(
        [sys.executable, "-m", "mapping", command, "--help"], capture_output=True, text=True, check=True
    )
    return sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", done.stdout)))


def script(shell: str, options: Mapping[str, Sequence[str]], flags: Sequence[str]) -> str:
    """The completion script for a shell, "bash" or "zsh". options: command -> its options. flags: Megatron's flags,
    which complete `launch` and what follows `--`."""
    cases = "\n".join(
        f'        " {command} "*) words="{" ".join([*words, *(flags if command == "launch" else ())])}" ;;'
        for command, words in options.items()
    )
    made = BASH.format(
        function=DISTRIBUTION.replace("-", "_"),
        program=DISTRIBUTION,
        commands=" ".join(options),
        flags=" ".join(flags),
        cases=cases,
    )
    return made if shell == "bash" else f"{ZSH}\n{made}"


def main(argv: Sequence[str]) -> None:
    """Print the completion script for the shell that `argv` names, bash or zsh; another one ends the process with 2."""
    parser = command_line(__doc__, program("completion"))
    parser.add_argument("shell", choices=("bash", "zsh"), help="the shell that reads it")
    shell = parser.parse_args(argv).shell
    with ThreadPoolExecutor() as pool:
        options = dict(zip(COMMANDS, pool.map(options_of, COMMANDS), strict=True))
    print(script(shell, options, sorted(BY_NAME)))


if __name__ == "__main__":
    main(sys.argv[1:])
