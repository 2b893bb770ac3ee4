"""Commands of the project share one parser, whose --help gives each option's meaning, default and choices."""

import ast
import re
import subprocess
import sys
from functools import cache

import pytest

from parallel_core.checkpoint.convert.__main__ import parser as convert_parser
from parallel_core.system.command_line import command_line
from tests.support.assets import ROOT


@cache
def all_calls() -> list[tuple[str, str, ast.Call]]:
    """(function's name, place, call) of every call in the sources but benchmarks/megatron, which runs where this
    project is not installed."""
    found, apart = [], ROOT / "benchmarks" / "megatron"
    for part in ("mapping", "parallel_core", "pynative", "examples", "benchmarks"):
        for file in (ROOT / part).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if apart not in file.parents else ():
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
                    name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
                    found.append((name, f"{file.relative_to(ROOT)}:{node.lineno}", node))
    return found


def calls(wanted: str) -> list[tuple[str, ast.Call]]:
    """(place, call) of every call of the function `wanted`."""
    return [(place, call) for name, place, call in all_calls() if name == wanted]


def test_every_command_has_the_one_parser():
    """No command makes an ArgumentParser of its own: all use `command_line` of parallel_core/system/command_line.py."""
    places = {place.partition(":")[0] for name in ("ArgumentParser", "_Parser") for place, _ in calls(name)}
    assert places == {"parallel_core/system/command_line.py"}
    assert len(calls("command_line")) > 15


def test_every_option_says_what_it_means():
    """Each `add_argument` in the sources, and each option of `convert`, has a help text."""
    arguments = calls("add_argument")
    silent = [
        place
        for place, call in arguments
        if not {"help", None} & {word.arg for word in call.keywords}  # None: **words, of the table below
    ]
    assert len(arguments) > 100 and silent == []
    assert [action.option_strings for action in convert_parser()._actions if not action.help] == []


def test_defaults_and_choices_are_shown():
    """--help shows an option's default and choices; no default for switches, for None, or where the sentence says
    "default" itself."""
    parser = command_line("A line.\n  kept as it is")
    parser.add_argument("--size", type=int, default=0, help="a number")
    parser.add_argument("--kind", choices=("a", "b"), default="a", help="one of them")
    parser.add_argument("--names", nargs="*", default=["100%", "x"], help="some")
    parser.add_argument("--on", action="store_true", help="a switch")
    parser.add_argument("--none", help="nothing")
    parser.add_argument("--said", default=1, help="by default one")
    lines = re.sub(r" {2,}", "  ", parser.format_help()).splitlines()
    for line in (
        "  kept as it is", "  --size SIZE  a number (default: 0)", "  --kind {a,b}  one of them (default: a)",
        "  --names [NAMES ...]  some (default: 100% x)", "  --on  a switch", "  --none NONE  nothing",
        "  --said SAID  by default one",
    ):  # fmt: skip
        assert line in lines


def test_a_complaint_stands_before_the_usage(capsys):
    """An unknown option is an error line before the usage; an abbreviated name is unknown."""
    parser = command_line("A line.")
    parser.add_argument("--size", type=int, help="a number")
    with pytest.raises(SystemExit):
        parser.parse_args(["--siz", "1"])
    assert capsys.readouterr().err.startswith("error: unrecognized arguments: --siz 1\nusage: ")


@pytest.mark.slow
@pytest.mark.parametrize("script", ["examples/gpt/pretrain_gpt.py", "examples/gpt/plot_loss.py"])
def test_a_script_has_help_without_mindspore(script):
    """The example scripts print --help where importing MindSpore fails."""
    code = (
        "import sys, runpy; sys.modules['mindspore'] = None; sys.argv = ['x.py', '--help']; "
        f"runpy.run_path({script!r}, run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "(default: " in done.stdout, done.stderr
