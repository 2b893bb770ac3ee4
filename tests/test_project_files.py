"""Files that make the project usable by others: its version, the lint before a commit, forms of issues."""

import re
import runpy
import sys
from types import ModuleType
from typing import Any

import pytest
import yaml

import mapping
import parallel_core
from parallel_core.system.environment import PYTHONS
from tests.support.assets import ROOT


@pytest.fixture
def packaging(monkeypatch) -> dict[str, Any]:
    """The arguments with which setup.py calls setuptools, in whose place stands a double."""
    said: dict[str, Any] = {}
    tools, command = ModuleType("setuptools"), ModuleType("setuptools.command.build_py")
    tools.setup, tools.find_packages, command.build_py = said.update, lambda include: include, object
    monkeypatch.setitem(sys.modules, "setuptools", tools)
    monkeypatch.setitem(sys.modules, "setuptools.command.build_py", command)
    monkeypatch.chdir(ROOT)
    runpy.run_path("setup.py")
    return said


def test_there_is_one_version(packaging):
    """The version is in one place, which the packaging reads; the changelog begins with it."""
    assert packaging["version"] == parallel_core.__version__ == mapping.__version__
    first = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)[0]
    assert parallel_core.__version__.startswith(first)


def test_classifiers_name_the_versions_of_python(packaging):
    """The classifiers have the versions of Python for which there is a MindSpore, and say that there are types."""
    said = packaging["classifiers"]
    pythons = [line.rpartition(" ")[2] for line in said if re.search(r":: 3\.\d+$", line)]
    (_, first), (_, last) = PYTHONS
    assert pythons == [f"3.{minor}" for minor in range(first, last + 1)] and "Typing :: Typed" in said
    assert packaging["python_requires"] == f">=3.{first},<3.{last + 1}"


def test_the_lint_before_a_commit_is_that_of_the_page():
    """.pre-commit-config.yaml runs each tool of CONTRIBUTING.md's lint."""
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0]["hooks"]
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (lint,) = re.findall(r"^(ruff .*mypy) ", page, re.MULTILINE)
    tools = [command.replace(" .", "") for command in lint.split(" && ")]
    assert [hook["entry"].replace(" --force-exclude", "") for hook in hooks] == tools


def test_forms_of_issues_can_be_shown():
    """Each form has a name, a description and fields with labels, at least one of them required."""
    forms = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"))
    contents = [yaml.safe_load(form.read_text(encoding="utf-8")) for form in forms if form.name != "config.yml"]
    assert len(contents) == 3
    for content in contents:
        fields = [field for field in content["body"] if field["type"] != "markdown"]
        assert content["name"] and content["description"] and all(field["attributes"]["label"] for field in fields)
        assert len({field["id"] for field in fields}) == len(fields)
        assert any(field.get("validations", {}).get("required") for field in fields)
