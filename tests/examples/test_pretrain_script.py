"""The example's launch script, run with a stand-in for Python: what it would train."""

import os
import subprocess

import pytest

from tests.mapping.test_checkpoint_args import saved
from tests.support.assets import ROOT
from tests.support.engine import TINY, config_of

SCRIPT = ROOT / "examples" / "gpt" / "pretrain_gpt.sh"


@pytest.fixture
def flags_of(tmp_path):
    """What the script gives to training, with these flags behind it."""
    stand_ins = tmp_path / "bin"
    stand_ins.mkdir()
    python = stand_ins / "python"
    python.write_text(f'#!/bin/sh\ncase "$*" in *pretrain_gpt.py*) printf "%s\\n" "$@" > {tmp_path}/words ;; esac\n')
    python.chmod(0o755)

    def run(flags: str, **environment: str) -> list[str]:
        variables = {**os.environ, "PATH": f"{stand_ins}:{os.environ['PATH']}", "OUTPUT": str(tmp_path / "out")}
        subprocess.run(["bash", SCRIPT, *flags.split()], env={**variables, **environment}, check=True, cwd=tmp_path)
        words = (tmp_path / "words").read_text().splitlines()
        return words[words.index(str(SCRIPT.parent / "pretrain_gpt.py")) + 1 :]

    return run


def test_a_base_has_its_own_shape(flags_of, tmp_path):
    """--use-checkpoint-args: sizes of the script's own model would overrule it, as flags do."""
    base = tmp_path / "base"
    base.mkdir()
    before = config_of(f"{TINY} --init-method-std 0.02 --swiglu --norm-epsilon 1e-3 --attention-dropout 0.2", 1)
    own = "--mock-data --tokenizer-type NullTokenizer --vocab-size 60"
    words = flags_of(f"--load {saved(base, before)} --use-checkpoint-args --finetune {own}", TP="1", NPROC="1")
    assert config_of(words, 1).to_dict()["model_config"] == before.to_dict()["model_config"]


def test_without_one_it_has_the_scripts(flags_of):
    """A small model."""
    model = config_of(flags_of("--mock-data --tokenizer-type NullTokenizer --vocab-size 60"), 2).model_config
    assert (model.num_layers, model.hidden_size, model.seq_length) == (4, 192, 256)
