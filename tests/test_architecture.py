"""The directions of imports, and what must import without MindSpore."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAY_IMPORT = {
    "mapping": {"mapping", "parallel_core"},
    "parallel_core": {"parallel_core"},
    "pynative": {"pynative", "parallel_core"},
}
OURS = {"mapping", "parallel_core", "pynative", "examples", "tests", "benchmarks"}


def imported(file: Path) -> set[str]:
    """Top-level packages that a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_import_directions(package):
    """mapping -> parallel_core <- pynative, and MindSpore in pynative only."""
    files = list((ROOT / package).rglob("*.py"))
    assert files
    forbidden = OURS - MAY_IMPORT[package] | (set() if package == "pynative" else {"mindspore"})
    crossings = {str(file.relative_to(ROOT)): imported(file) & forbidden for file in files}
    assert {file: names for file, names in crossings.items() if names} == {}


def test_plans_import_without_mindspore():
    """Every module of mapping and parallel_core, in a process in which importing MindSpore fails."""
    script = (
        "import sys, importlib, pkgutil\n"
        "sys.modules['mindspore'] = None\n"
        "import mapping, parallel_core\n"
        "for package in (mapping, parallel_core):\n"
        "    for module in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):\n"
        "        if not module.name.endswith('__main__'):\n"
        "            importlib.import_module(module.name)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_private_tape_is_named_in_one_file():
    """DESIGN, decision 5: the day MindSpore's private autograd moves, one file changes."""
    private = ("_c_expression", "_grad_function", "_pynative_executor")
    naming = {
        str(file.relative_to(ROOT))
        for file in (ROOT / "pynative").rglob("*.py")
        if any(name in file.read_text(encoding="utf-8") for name in private)
    }
    assert naming == {"pynative/autograd.py"}
