"""The environment is checked before MindSpore is imported: versions, the launcher; and it is described without
secrets."""

import os
import subprocess
import sys

import pytest

from parallel_core.findings import ConfigError
from parallel_core.system.environment import described, number_of, other_launchers, unfit_versions
from tests.support.assets import ROOT

NO_MINDSPORE = "there is no MindSpore 2.10 for it; make an environment of Python 3.10 - 3.12"


@pytest.mark.parametrize(
    "python, numpy, named",
    [
        ((3, 10), "1.26.4", []),
        ((3, 12), "1.26.4", []),
        (
            (3, 13),
            "1.26.4",
            ["Python 3.13: there is no MindSpore 2.10 for it; make an environment of Python 3.10 - 3.12"],
        ),
        ((3, 9), "", [f"Python 3.9: {NO_MINDSPORE}"]),
        ((3, 11), "2.1.0", ["NumPy 2.1.0: MindSpore's tensors break under it; pip install 'numpy>=1.26,<2'"]),
    ],
)
def test_versions_that_cannot_work_are_named(python, numpy, named):
    """A Python or NumPy version that MindSpore cannot work with is a finding with the version that it needs."""
    assert [str(finding) for finding in unfit_versions(python, numpy)] == named


@pytest.mark.parametrize("set_to, number", [({}, 1), ({"ONE": "", "OTHER": "3"}, 3), ({"ONE": "0", "OTHER": "3"}, 0)])
def test_the_first_number_of_the_environment_counts(monkeypatch, set_to, number):
    """The first of several variables that is not empty counts; without one the default."""
    for name, text in set_to.items():
        monkeypatch.setenv(name, text)
    assert number_of("ONE", "OTHER", default=1) == number


@pytest.mark.parametrize("text", ["x", "-1", "1.0", "²"])
def test_a_launchers_number_that_is_none_is_named(monkeypatch, text):
    """Text in place of a number is an error that names the variable."""
    monkeypatch.setenv("ONE", text)
    with pytest.raises(ConfigError, match=f"ONE {text}: is no whole number; msrun sets it"):
        number_of("ONE", default=1)


def test_what_is_installed_here_works():
    """The versions installed here give no finding."""
    assert [*unfit_versions()] == []


@pytest.mark.slow
def test_the_first_import_says_it(tmp_path):
    """`import pynative` with a NumPy whose metadata say version 2 is an ImportError about that version."""
    (tmp_path / "numpy-2.3.1.dist-info").mkdir()
    (tmp_path / "numpy-2.3.1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 2.3.1\n")
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    command = [sys.executable, "-c", "import pynative"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].startswith("ImportError: NumPy 2.3.1: MindSpore's tensors break under it")


@pytest.mark.parametrize(
    "environment, is_named",
    [
        ({}, False),
        ({"WORLD_SIZE": "1"}, False),
        ({"MS_ROLE": "MS_WORKER", "WORLD_SIZE": "2"}, False),
        ({"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "1"}, True),
        ({"WORLD_SIZE": "2", "RANK": "1"}, True),
    ],
)
def test_torchrun_is_named(environment, is_named):
    """Variables of torchrun and the like, without msrun's, are a finding that names `python -m mapping launch`: their
    processes would wait for msrun's."""
    found = [str(finding) for finding in other_launchers(environment)]
    assert (len(found) == 1 and "`python -m mapping launch`" in found[0]) if is_named else not found


@pytest.mark.slow
def test_a_script_that_torchrun_started_ends_at_once():
    """A training script started by torchrun ends with exit code 2 and one error line, without a traceback."""
    environment = {**os.environ, "WORLD_SIZE": "2", "RANK": "0", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "examples" / "gpt" / "pretrain_gpt.py"), "--num-layers", "2"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert done.stderr.startswith("error: WORLD_SIZE 2: processes of torchrun, deepspeed or the like")


def test_a_run_is_described_without_secrets():
    """The description of a run has versions and the variables that MindSpore, Ascend and numpy read, and no other
    variable, which may be a key."""
    found = described({"MS_WORKER_NUM": "2", "WANDB_API_KEY": "secret", "AWS_SECRET": "secret", "OMP_NUM_THREADS": "1"})
    assert found["MS_WORKER_NUM"] == "2" and found["OMP_NUM_THREADS"] == "1" and found["numpy"].startswith("1.")
    assert "secret" not in found.values()
