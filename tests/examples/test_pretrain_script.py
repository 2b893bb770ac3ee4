"""pretrain_gpt.sh run with a stand-in for Python: the command that it would train by, and its errors."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mapping.test_checkpoint_args import saved
from tests.support.assets import ROOT
from tests.support.engine import TINY, config_of

SCRIPT = ROOT / "examples" / "gpt" / "pretrain_gpt.sh"


@pytest.fixture
def command_of(tmp_path):
    """A function (flags, script, environment) -> the words of the msrun command that the script would run with these
    flags appended."""
    stand_ins = tmp_path / "bin"
    stand_ins.mkdir()
    python = stand_ins / "python"
    python.write_text(
        f'#!/bin/sh\ncase "$*" in *pretrain_gpt.py*) printf "%s\\n" "$@" > {tmp_path}/words ;;\n'
        f'-c*) exec {sys.executable} "$@" ;; esac\n'
    )
    python.chmod(0o755)

    def run(flags: str, script: Path = SCRIPT, **environment: str) -> list[str]:
        variables = {"PATH": f"{stand_ins}:{os.environ['PATH']}", "OUTPUT": str(tmp_path / "out"), **environment}
        subprocess.run(["bash", script, *flags.split()], env={**os.environ, **variables}, check=True, cwd=tmp_path)
        return (tmp_path / "words").read_text().splitlines()

    return run


@pytest.fixture
def flags_of(command_of):
    """A function (flags, environment) -> the flags behind pretrain_gpt.py in the command that the script would run."""

    def run(flags: str, **environment: str) -> list[str]:
        words = command_of(flags, **environment)
        return words[words.index(str(SCRIPT.parent / "pretrain_gpt.py")) + 1 :]

    return run


def test_a_base_has_its_own_shape(flags_of, tmp_path):
    """With --use-checkpoint-args the script gives no sizes of its own model, which would overrule the checkpoint's as
    flags do."""
    base = tmp_path / "base"
    base.mkdir()
    before = config_of(f"{TINY} --init-method-std 0.02 --swiglu --norm-epsilon 1e-3 --attention-dropout 0.2", 1)
    own = "--mock-data --tokenizer-type NullTokenizer --vocab-size 60"
    words = flags_of(f"--load {saved(base, before)} --use-checkpoint-args --finetune {own}", TP="1", NPROC="1")
    assert config_of(words, 1).to_dict()["model_config"] == before.to_dict()["model_config"]


@pytest.mark.parametrize(("flags", "steps"), [("", 20), ("--train-iters 300", 20), ("--train-iters 10 --seed 2", 1)])
def test_the_warm_up_fits_into_a_short_run(flags_of, flags, steps):
    """The script's warm-up steps, shortened for `--train-iters 10`, which was refused for a warm-up that the script
    itself had given."""
    assert config_of(flags_of(f"--mock-data {flags}"), 2).optimizer_config.lr_warmup_iters == steps


def test_without_one_it_has_the_scripts(flags_of):
    """Without --use-checkpoint-args the script's own sizes count: 4 layers, hidden size 192, sequences of 256."""
    model = config_of(flags_of("--mock-data --tokenizer-type NullTokenizer --vocab-size 60"), 2).model_config
    assert (model.num_layers, model.hidden_size, model.seq_length) == (4, 192, 256)


@pytest.mark.parametrize(
    "sizes, processes",
    [
        ({}, 2),
        ({"PP": "2"}, 2),
        ({"CP": "2"}, 2),
        ({"NPROC": "2", "TP": "1", "PP": "1"}, 2),
        ({"NPROC": "4", "TP": "2", "PP": "2"}, 4),
        ({"TP": "2", "CP": "2"}, 4),
    ],
)
def test_two_processes_unless_sizes_need_more(command_of, sizes, processes):
    """--worker_num is 2, as the README says, also for PP=2 alone (which once took four, with a second copy of the
    model), and 4 where TP x PP x CP is."""
    assert f"--worker_num={processes}" in command_of("--mock-data", **sizes)


def test_a_copy_trains_beside_itself(command_of, tmp_path):
    """A copied script uses the project's program and tokenizer, and writes its output beside itself."""
    (tmp_path / "copies").mkdir()
    copy = shutil.copy(SCRIPT, tmp_path / "copies" / "mine.sh")
    words = command_of("--mock-data", script=Path(copy), OUTPUT="", PYTHONPATH=str(ROOT))
    assert str(SCRIPT.parent / "pretrain_gpt.py") in words and str(SCRIPT.parent / "vocab" / "vocab.json") in words
    assert words[words.index("--save") + 1] == str(tmp_path / "copies" / "output")


def test_a_size_that_is_no_number_is_named(tmp_path):
    """TP=two and the like: an error that names the variable, before the shell computes with the value."""
    environment = {**os.environ, "OUTPUT": str(tmp_path / "out"), "TP": "two"}
    done = subprocess.run(["bash", SCRIPT], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "error: TP=two: must be a whole number\n")


def test_a_missing_checkpoint_is_said_before_data_are_prepared(tmp_path):
    """A --load folder that is missing: the error comes before any process is started, and does not count data that the
    script would make among the missing files."""
    environment = {**os.environ, "OUTPUT": str(tmp_path / "out"), "PYTHONPATH": str(ROOT)}
    command = ["bash", SCRIPT, "--load", str(tmp_path / "nowhere")]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and not (tmp_path / "out").exists()
    assert done.stderr.splitlines() == [
        f"error: --load {tmp_path}/nowhere: there is no such folder; give the path of a checkpoint, or leave it out"
    ]
