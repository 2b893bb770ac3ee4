"""A process that cannot run MindSpore is told why, before MindSpore breaks."""

import os
import subprocess
import sys

import pytest

from parallel_core.system.environment import described, other_launchers, unfit_versions
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
    assert [str(finding) for finding in unfit_versions(python, numpy)] == named


def test_what_is_installed_here_works():
    """The versions are really asked for."""
    assert [*unfit_versions()] == []


@pytest.mark.slow
def test_the_first_import_says_it(tmp_path):
    """A NumPy that calls itself 2: the error is one of the versions, not of tensors."""
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
    """Its processes would each wait for msrun's."""
    found = [str(finding) for finding in other_launchers(environment)]
    assert (len(found) == 1 and "`python -m mapping launch`" in found[0]) if is_named else not found


@pytest.mark.slow
def test_a_script_that_torchrun_started_ends_at_once():
    """With a line, not with the traceback of a device."""
    environment = {**os.environ, "WORLD_SIZE": "2", "RANK": "0", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "examples" / "gpt" / "pretrain_gpt.py"), "--num-layers", "2"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert done.stderr.startswith("error: WORLD_SIZE 2: processes of torchrun, deepspeed or the like")


def test_a_run_is_described_without_secrets():
    """Versions, and variables that MindSpore, an Ascend and numpy read; no other one, which may be a key."""
    found = described({"MS_WORKER_NUM": "2", "WANDB_API_KEY": "secret", "AWS_SECRET": "secret", "OMP_NUM_THREADS": "1"})
    assert found["MS_WORKER_NUM"] == "2" and found["OMP_NUM_THREADS"] == "1" and found["numpy"].startswith("1.")
    assert "secret" not in found.values()
