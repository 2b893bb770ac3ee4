"""Mistakes of a command line end the example with a clear message and a non-zero exit code, before training."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from parallel_core.data.indexed_dataset import IndexedDatasetBuilder
from pynative.startup.launch import msrun_command, quiet_environment
from tests.support import warm
from tests.support.assets import ROOT
from tests.support.distributed import run
from tests.support.user_scripts import run_script

SCRIPT = ROOT / "examples" / "gpt" / "pretrain_gpt.py"
VOCAB = ROOT / "examples" / "gpt" / "vocab"
GOOD = {
    "--num-layers": 2,
    "--hidden-size": 32,
    "--num-attention-heads": 4,
    "--seq-length": 16,
    "--max-position-embeddings": 16,
    "--micro-batch-size": 2,
    "--train-iters": 2,
    "--lr": 1e-3,
    "--eval-iters": 0,
    "--split": "1,0,0",
    "--tokenizer-type": "GPT2BPETokenizer",
    "--vocab-file": VOCAB / "vocab.json",
    "--merge-file": VOCAB / "merges.txt",
}


@pytest.fixture(scope="module")
def prefix(tmp_path_factory) -> Path:
    """Prefix of a data set with one id that the shipped vocabulary does not have."""
    prefix = tmp_path_factory.mktemp("data") / "corpus"
    with IndexedDatasetBuilder(prefix, dtype=np.uint16) as builder:
        builder.add_document([1, 2, 3, 60000] * 40, [160])
        builder.finalize()
    return prefix


def command_line(changes: dict) -> list[str]:
    """Words of a good command line of the example with these flags changed, or left out where the value is None."""
    flags = {name: value for name, value in {**GOOD, **changes}.items() if value is not None}
    return [str(word) for pair in flags.items() for word in pair if word != ""]


MISTAKES = {
    "no data": ({}, "--data-path"),
    "missing data": ({"--data-path": "/nowhere/corpus"}, "/nowhere/corpus"),
    "missing vocabulary": ({"--vocab-file": "/nowhere/vocab.json", "--mock-data": ""}, "/nowhere/vocab.json"),
    "heads": ({"--num-attention-heads": 5, "--mock-data": ""}, "--num-attention-heads 5"),
    "batches": ({"--global-batch-size": 3, "--mock-data": ""}, "--global-batch-size 3"),
    "ranks": ({"--tensor-model-parallel-size": 2, "--mock-data": ""}, "--tensor-model-parallel-size 2"),
    "abbreviated": ({"--num-layer": 2, "--mock-data": ""}, "--num-layers"),
    "mock conversations": ({"--is-instruction-dataset": "", "--mock-data": ""}, "--is-instruction-dataset"),
    "no such linear": ({"--lora-target-modules": "linear_kvq", "--mock-data": ""}, "--lora-target-modules linear_kvq"),
    "nothing to load": ({"--load": "/nowhere", "--mock-data": ""}, "--load /nowhere: there is no such folder"),
    "no adapters there": (
        {"--lora-target-modules": "linear_qkv", "--lora-load": "/nowhere", "--mock-data": ""},
        "--lora-load /nowhere",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_wrong_command_line(name, tmp_path):
    """Each of MISTAKES ends the example with exit code 2 and a message that names the flag."""
    changes, expected = MISTAKES[name]
    ((code, errors),) = run(1, run_script, SCRIPT, command_line(changes), tmp_path)
    assert code == 2 and expected in errors, errors


def test_a_wrong_command_line_in_a_process_of_its_own(tmp_path):
    """Plain python, no msrun: a missing --data-path is exit code 2 and no traceback, and MindSpore, whose import takes
    seconds, is not imported."""
    (tmp_path / "mindspore.py").write_text("raise SystemExit('MindSpore is imported')")
    command = [sys.executable, str(SCRIPT), *command_line({})]
    environment = quiet_environment() | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=180)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "--data-path" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("own_data", [False, True])
def test_a_typo_in_the_shell_example(tmp_path, own_data):
    """pretrain_gpt.sh with --num-layer: one line that suggests --num-layers, exit code 2, and no data prepared, no
    process started."""
    command = ["bash", str(SCRIPT.with_suffix(".sh")), "--num-layer", "3", *["--mock-data"] * own_data]
    environment = warm.programs_first() | {"OUTPUT": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 2 and not list(tmp_path.iterdir())
    assert done.stderr.startswith("error: --num-layer: there is no such flag; did you mean --num-layers")
    assert done.stderr.count("\n") == 1 and done.stdout == ""


def launched(tmp_path: Path, processes: int, changes: dict) -> tuple[int, str]:
    """(exit code, output) of the example under msrun with so many processes and these changes of its flags."""
    command = msrun_command(SCRIPT, command_line(changes), processes, tmp_path)
    done = warm.run(command, tmp_path, warm.programs_first())
    return done.returncode, done.stdout + done.stderr


def test_more_ranks_than_the_layout_has_places_for(tmp_path):
    """Three processes for tensor-parallel size 2 under msrun: the whole job ends with an error that gives the rule."""
    code, output = launched(tmp_path, 3, {"--tensor-model-parallel-size": 2, "--mock-data": ""})
    assert code != 0
    assert "--tensor-model-parallel-size 2" in output and "3 processes" in output


def test_data_made_with_another_vocabulary(prefix, tmp_path):
    """An id outside the vocabulary in the data ends the run under msrun before the first step."""
    changes = {"--data-path": prefix, "--save": tmp_path, "--save-interval": 100}
    with pytest.raises(ValueError, match="60000"):
        run(2, run_script, SCRIPT, command_line(changes), tmp_path)
    assert not list(tmp_path.rglob("metrics.jsonl"))


def test_a_device_that_is_not_there(tmp_path):
    """--device-target Ascend under msrun on a host without one: the message names the flag, and all processes end, the
    scheduler too, which otherwise waits minutes for the workers."""
    code, output = launched(tmp_path, 2, {"--device-target": "Ascend", "--mock-data": ""})
    assert code != 0
    assert "--device-target Ascend: this host has no Ascend device" in output
