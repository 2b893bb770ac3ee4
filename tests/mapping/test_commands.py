"""`python -m mapping`: the one command with subcommands, its help, and shell completion."""

import re
import subprocess

import pytest

from mapping.__main__ import main, usage
from mapping.commands import COMMANDS
from mapping.completion import script
from mapping.inspect import main as inspect
from parallel_core.data.indexed_dataset import IndexedDatasetBuilder
from parallel_core.system.command_line import DISTRIBUTION, program


def test_a_command_that_is_none_is_named(monkeypatch, capsys):
    """An unknown command is an error that lists the commands; without a command each is listed with a sentence."""
    monkeypatch.setattr("sys.argv", ["mapping", "trian"])
    with pytest.raises(SystemExit, match="error: trian: is no command; choose one of launch, explain"):
        main()
    monkeypatch.setattr("sys.argv", ["mapping"])
    main()
    assert capsys.readouterr().out.strip() == usage()
    assert all(re.search(rf"^  {name} +\w", usage(), re.MULTILINE) for name in COMMANDS)


def test_a_command_names_itself_as_it_was_called(monkeypatch):
    """Usage lines begin with the console script's name, or with `python -m mapping` in a clone."""
    monkeypatch.setattr("sys.argv", [f"/usr/bin/{DISTRIBUTION}"])
    assert program("explain") == f"{DISTRIBUTION} explain"
    monkeypatch.setattr("sys.argv", ["/somewhere/mapping/__main__.py"])
    assert program() == "python -m mapping"


def test_inspect_takes_a_data_set_or_a_checkpoint(tmp_path, capsys):
    """`inspect PATH` takes a data set's prefix or a checkpoint; a path that is neither is an error with its name."""
    with IndexedDatasetBuilder(tmp_path / "set") as builder:
        builder.add_document([1, 2, 3], [3])
        builder.finalize()
    assert inspect([str(tmp_path / "set")]) == 0
    assert "documents: 1\n" in capsys.readouterr().out
    assert inspect([str(tmp_path / "none")]) != 0
    assert "none" in capsys.readouterr().err


def completed(line: str) -> list[str]:
    """The words that bash offers at the end of `line`."""
    made = script("bash", {"launch": ["--print"], "explain": ["--json", "--verbose"]}, ["--num-layers", "--lr"])
    asked = f"COMP_WORDS=({line}); COMP_CWORD={len(line.split()) - 1}"
    done = subprocess.run(
        ["bash", "-c", f'{made}\n{asked}; _megatron_pynative; printf "%s\\n" "${{COMPREPLY[@]}}"'],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


@pytest.mark.slow
@pytest.mark.parametrize(
    "line, offered",
    [
        ("megatron-pynative ex", ["explain"]),
        ("megatron-pynative explain --v", ["--verbose"]),
        ("megatron-pynative explain -- --num", ["--num-layers"]),
        ("megatron-pynative launch mine.sh --l", ["--lr"]),
        ("megatron-pynative explain launch --v", ["--verbose"]),
    ],
)
def test_bash_completes(line, offered):
    """bash completes commands, their options and, where a script's arguments stand, Megatron's flags; zsh's script
    loads."""
    assert completed(line) == offered
    assert script("zsh", {}, []).startswith("autoload")
