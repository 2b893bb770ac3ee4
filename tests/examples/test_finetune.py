"""From a HuggingFace folder to a fine-tuned one: the recipe with adapters as it stands, with all weights step by step."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from parallel_core.checkpoint.convert.__main__ import main as convert
from parallel_core.checkpoint.tensor_file import TensorFile
from parallel_core.data.datasets import datasets_provider
from parallel_core.data.tokenizers import TokenizerOptions, build_tokenizer
from tests.support.assets import ROOT
from tests.support.distributed import run
from tests.support.engine import config_of
from tests.support.generation import continued
from tests.support.pretraining import pretrain_tiny
from tests.support.speaking_model import speaking_model

SCRIPT = ROOT / "examples" / "gpt" / "finetune.sh"
EXAMPLES = ROOT / "examples" / "gpt" / "instructions.jsonl"
ALL_TRAIN = ("--split", "100,0,0", "--eval-iters", "0")


@pytest.fixture
def finetune(tmp_path):
    """Run the script on the first four of its conversations; its output's lines."""
    data = tmp_path / "four.jsonl"
    data.write_text("".join(EXAMPLES.read_text(encoding="utf-8").splitlines(keepends=True)[:4]), encoding="utf-8")
    sizes = {"DATA": data, "SEQ_LENGTH": 128, "BATCH": 4, "OUTPUT": tmp_path / "out"}

    def run_script(model: Path | str, *flags: str, **environment: str) -> list[str]:
        variables = {name: str(value) for name, value in (sizes | environment).items()}
        command = ["bash", str(SCRIPT), str(model), *flags]
        done = subprocess.run(command, env=os.environ | variables, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()

    return run_script


def weights(folder: Path) -> dict[str, np.ndarray]:
    """Of a HuggingFace folder of one file."""
    file = TensorFile(folder / "model.safetensors")
    return {name: file.tensor(name).widened() for name in file.names}


def test_adapters_are_trained_and_exported(finetune, tmp_path):
    """The loss falls, linears alone change, and the exported folder gives the answer that was printed."""
    model = speaking_model("hf/llama", "hf_llama", tmp_path)
    tuning = {"NPROC": "1", "LR": "2e-2", "EPOCHS": "4", "QUESTION": "Say hello."}
    printed = "\n".join(finetune(model, *ALL_TRAIN, **tuning))
    exported = tmp_path / "out" / "huggingface"
    steps = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    losses = [step["loss"] for step in steps if "loss" in step]
    assert len(losses) == 4 and losses[-1] < losses[0]
    before, after = weights(model), weights(exported)
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert before.keys() == after.keys() and changed == {name for name in before if "_proj" in name}
    (answer,) = answers(exported, ["Say hello."], 100)
    assert answer.strip() and f"> Say hello.\n{answer}\n" in printed


def answers(folder: Path, questions: list[str], most: int) -> list[str]:
    """The words of so many tokens at most behind each question, by the folder's model, tokenizer and chat template."""
    tokenizer = build_tokenizer(TokenizerOptions("PretrainedFromHF", tokenizer_model=str(folder)))
    messages = [[{"role": "user", "content": question}] for question in questions]
    prompts = [tokenizer.apply_chat_template(asked, add_generation_prompt=True) for asked in messages]
    way = {"max_new_tokens": most, "ends": frozenset({tokenizer.eos})}
    return [tokenizer.detokenize(new) for new, _ in run(1, continued, folder, prompts, [way])[0][0]]


def trained(backend, flags: list[str]) -> None:
    """Train and save as the flags say."""
    provider = datasets_provider(config_of(flags, backend.world_size))
    pretrain_tiny(backend, flags, train_valid_test_datasets_provider=provider)


def test_all_weights_are_trained_until_the_model_knows_the_answers(finetune, tmp_path):
    """Each command of the script on a rank of the pool; the exported model says what the data say."""
    model = speaking_model("hf/qwen2", "hf_qwen2", tmp_path)
    words = tmp_path / "words"
    stand_in = tmp_path / "bin" / "python"
    stand_in.parent.mkdir()
    stand_in.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" --- >> {words}\n'
        f'case "$2" in parallel_core.data.preprocess) exec {sys.executable} "$@" ;; esac\n'
    )
    stand_in.chmod(0o755)
    tuning = {"ADAPTERS": "no", "TEMPLATE": "qwen", "NPROC": "1", "LR": "2e-2", "EPOCHS": "60"}
    finetune(model, *ALL_TRAIN, PATH=f"{stand_in.parent}:{os.environ['PATH']}", **tuning)
    commands = [command.split() for command in words.read_text().split("---\n")]
    launch = next(command for command in commands if "msrun" in command)
    run(1, trained, launch[launch.index(str(SCRIPT.parent / "pretrain_gpt.py")) + 1 :])
    conversion = next(command for command in commands if "parallel_core.checkpoint.convert" in command)
    assert convert([*conversion[2:], "--logits", "no"]) == 0
    data = [json.loads(line) for line in (tmp_path / "four.jsonl").read_text(encoding="utf-8").splitlines()]
    questions = ["\n".join(part for part in (row["instruction"], row["input"]) if part) for row in data]
    assert answers(tmp_path / "out" / "huggingface", questions, 40) == [row["output"] for row in data]


def test_what_is_no_model_is_named(tmp_path):
    """Before data are prepared."""
    done = subprocess.run(["bash", SCRIPT, tmp_path], capture_output=True, text=True, env=os.environ)
    assert done.returncode == 2 and done.stderr.startswith(f"error: {tmp_path}: give the folder of a HuggingFace model")
