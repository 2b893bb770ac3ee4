"""Rules of the sources: directions of imports, floors within each package, limits of size, docstrings' beginnings, and
what must import without MindSpore."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import structure

ROOT = Path(__file__).resolve().parents[1]
MAY_IMPORT = {
    "mapping": {"mapping", "parallel_core"},
    "parallel_core": {"parallel_core"},
    "pynative": {"pynative", "parallel_core"},
}
OURS = {"mapping", "parallel_core", "pynative", "examples", "tests", "benchmarks"}


def imported(file: Path) -> set[str]:
    """The top-level packages that a file imports anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_import_directions(package):
    """mapping and pynative import parallel_core, which imports neither; MindSpore is imported in pynative alone."""
    files = list((ROOT / package).rglob("*.py"))
    assert files
    forbidden = OURS - MAY_IMPORT[package] | (set() if package == "pynative" else {"mindspore"})
    crossings = {str(file.relative_to(ROOT)): imported(file) & forbidden for file in files}
    assert {file: names for file, names in crossings.items() if names} == {}


def test_plans_import_without_mindspore():
    """Every module of mapping and parallel_core is imported in a process in which importing MindSpore fails."""
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
    """Names of MindSpore's private autograd occur in pynative/tape/autograd.py alone, the one file to change when they
    move."""
    private = ("_c_expression", "_grad_function", "_pynative_executor")
    naming = {
        str(file.relative_to(ROOT))
        for file in (ROOT / "pynative").rglob("*.py")
        if any(name in file.read_text(encoding="utf-8") for name in private)
    }
    assert naming == {"pynative/tape/autograd.py"}


FLOORS = {
    "mapping": (
        {"commands", "flags", "inspect"},
        {"completion", "given"},
        {"derive"},
        {"checks", "files", "naming", "outcome", "readers"},
        {"flag_reference", "memory"},
        {"merge"},
        {"reading"},
        {"suggest"},
        {"arguments", "compare", "explain", "launch", "plan", "report"},
        {"__main__"},
    ),
    "parallel_core": (
        {"batch_sizes", "findings", "messages", "numerics", "strictness", "whereabouts"},
        {"faults", "sharding", "system"},
        {"buffers", "initial_values", "operations", "recompute", "sampling", "schedules", "sizes"},
        {"context", "partition"},
        {"config"},
        {"attention", "batch", "moe", "optimizer", "topology", "trace"},
        {"blocks", "data", "step_figures"},
        {"costs", "no_effect"},
        {"checkpoint"},
        {"planner", "report"},
        {"compare", "start_lines"},
    ),
    "pynative": (
        {"dtypes", "local", "timers"},
        {"onednn"},
        {"memory"},
        {"collectives", "step_part", "step_position"},
        {"parallel_state"},
        {"parameter"},
        {"tape"},
        {"kernels", "step_figures"},
        {"context_parallel", "key_value_cache", "startup"},
        {"distributed", "pipeline_parallel", "tensor_parallel"},
        {"moe", "optimizer"},
        {"transformer"},
        {"checkpointing"},
        {"dist_checkpointing", "training"},
        {"calibrate", "generation"},
    ),
}
"""The parts of each package, lowest floor first: a part imports only parts of lower floors."""


def test_no_import_circles():
    """Neither modules nor the parts of a package import one another in a circle; imports for types count."""
    graph = structure.import_graph()
    assert len(graph) > 200
    assert structure.circles(graph) == []
    parts: dict[str, set[str]] = {}
    for part, imported_part, _, _ in structure.arrows():
        parts.setdefault(part, set()).add(imported_part)
        parts.setdefault(imported_part, set())
    assert structure.circles(parts) == []


@pytest.mark.parametrize("package", FLOORS)
def test_no_arrow_from_a_lower_floor_up(package):
    """Each part of a package has a floor in `FLOORS`, and imports only parts of lower floors."""
    level = {f"{package}.{part}": floor for floor, parts in enumerate(FLOORS[package]) for part in parts}
    there = {structure.room(module) for module in structure.modules() if module.startswith(f"{package}.")}
    assert there == set(level)
    up = [
        (module, other)
        for part, imported_part, module, other in structure.arrows()
        if part.startswith(f"{package}.") and level[imported_part] >= level[part]
    ]
    assert up == []


def test_files_and_functions_are_short():
    """Files of the packages, examples and benchmarks have fewer than 350 lines, functions at most 45."""
    files = [*structure.modules().values(), *(ROOT / "examples").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]
    long_files = {str(f.relative_to(ROOT)): n for f in files if (n := f.read_text(encoding="utf-8").count("\n")) >= 350}
    assert long_files == {}
    long_functions = {
        (str(f.relative_to(ROOT)), name): n for f in files for name, n in structure.functions(f) if n > 45
    }
    assert long_functions == {}


def test_docstrings_begin_with_the_thing_that_they_describe():
    """Docstrings do not begin with a relative clause or a genitive (What, Of, ...); 25 are let through, so that no
    change waits for a word alone."""
    clause = re.compile(r"(What|Whose|Of|Which|Where|How|That|Whom)\b")
    files = [*structure.modules().values(), *(ROOT / "tests").rglob("*.py")]
    found = [
        f"{f.relative_to(ROOT)}:{n}: {t[:60]}" for f in files for n, t in structure.docstrings(f) if clause.match(t)
    ]
    assert len(found) <= 25, "\n".join(found)


def test_every_test_says_what_it_guards():
    """Each test function and test method under tests/ has a docstring."""
    files = list((ROOT / "tests").rglob("test_*.py"))
    assert len(files) > 200
    found = [
        f"{f.relative_to(ROOT)}:{n}: {name}"
        for f in files
        for n, name in structure.undocumented(f)
        if name.startswith("test_")
    ]
    assert found == [], "\n".join(found)


def test_functions_without_a_docstring_are_found(tmp_path):
    """`structure.undocumented` finds a function and a method without a docstring, and neither of those that have
    one."""
    functions = 'def first():\n    pass\n\n\ndef second():\n    """Said."""\n'
    methods = 'class Tests:\n    def third(self):\n        pass\n\n    def fourth(self):\n        """Said."""\n'
    file = tmp_path / "file.py"
    file.write_text(f"{functions}\n\n{methods}")
    assert list(structure.undocumented(file)) == [(1, "first"), (10, "third")]


def test_circles_are_found():
    """`structure.circles` finds a circle of two and one of three, and nothing else."""
    graph = {"a": {"b"}, "b": {"a"}, "c": {"d"}, "d": {"e"}, "e": {"c", "a"}, "f": {"a"}}
    assert sorted(structure.circles(graph)) == [["a", "b"], ["c", "d", "e"]]
