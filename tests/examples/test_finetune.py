"""finetune.sh, from a HuggingFace folder to a fine-tuned one: with adapters as it stands, with all weights step by
step."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from mapping.reading import read
from parallel_core.checkpoint.convert.__main__ import main as convert
from parallel_core.checkpoint.tensor_file import TensorFile
from parallel_core.data.datasets import datasets_provider
from parallel_core.data.instruction.chat import Chat
from parallel_core.data.instruction.templates import load_template
from parallel_core.data.prompts import Prompt
from parallel_core.data.tokenizers import TokenizerOptions, build_tokenizer
from tests.support import warm
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
def data(tmp_path) -> dict[str, str]:
    """Environment variables of a small run of finetune.sh on its first four conversations."""
    four = tmp_path / "four.jsonl"
    four.write_text("".join(EXAMPLES.read_text(encoding="utf-8").splitlines(keepends=True)[:4]), encoding="utf-8")
    return {"DATA": str(four), "SEQ_LENGTH": "128", "BATCH": "4", "OUTPUT": str(tmp_path / "out")}


def weights(folder: Path) -> dict[str, np.ndarray]:
    """The tensors of a HuggingFace folder of one file."""
    file = TensorFile(folder / "model.safetensors")
    return {name: file.tensor(name).widened() for name in file.names}


def test_adapters_are_trained_and_exported(data, tmp_path):
    """finetune.sh with LoRA in full: the loss falls, the exported folder differs in linears alone, and transformers'
    answer from it is the one that the script printed."""
    model = speaking_model("hf/llama", "hf_llama", tmp_path)
    tuning = {"NPROC": "1", "LR": "2e-2", "EPOCHS": "4", "QUESTION": "Say hello.", "TEMPLATE": "qwen"}
    command = ["bash", SCRIPT, model, *ALL_TRAIN]
    environment = warm.programs_first() | data | tuning
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    exported = tmp_path / "out" / "huggingface"
    steps = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    losses = [step["loss"] for step in steps if "loss" in step]
    assert len(losses) == 4 and losses[-1] < losses[0]
    before, after = weights(model), weights(exported)
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert before.keys() == after.keys() and changed == {name for name in before if "_proj" in name}
    (answer,) = answers(exported, ["Say hello."], 40, "qwen")  # 40 tokens fit into the training's sequences
    assert answer.strip() and f"> Say hello.\n{answer}" in done.stdout


def answers(folder: Path, questions: list[str], most: int, template: str | None = None) -> list[str]:
    """The model's continuation of each question, of at most `most` tokens, by the folder's weights and tokenizer; by
    the chat template of that name, else the tokenizer's own."""
    tokenizer = build_tokenizer(TokenizerOptions("PretrainedFromHF", tokenizer_model=str(folder)))
    messages = [[{"role": "user", "content": question}] for question in questions]
    chat = Chat(load_template(template), tokenizer) if template else None
    prompts = [Prompt(messages=tuple(asked)).tokens(tokenizer, chat) for asked in messages]
    way = {"max_new_tokens": most, "ends": frozenset({tokenizer.eos}) | (chat.ends if chat else frozenset())}
    return [tokenizer.detokenize(new) for new, _ in run(1, continued, folder, prompts, [way])[0][0]]


def trained(backend, flags: list[str]) -> None:
    """Train by `pretrain` on this rank with a command line's flags, on the data that they name; the checkpoint goes
    where they say."""
    provider = datasets_provider(config_of(flags, backend.world_size))
    pretrain_tiny(backend, flags, train_valid_test_datasets_provider=provider)


@pytest.fixture
def shown(tmp_path):
    """A function that runs a shell command with a stand-in for python, which executes `preprocess` alone, and returns
    the words of each call of python."""
    words, stand_in = tmp_path / "words", tmp_path / "bin" / "python"
    stand_in.parent.mkdir()
    stand_in.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" --- >> {words}\n'
        f'case "$3" in preprocess) exec {warm.programs()}/python "$@" ;; esac\n'
    )
    stand_in.chmod(0o755)

    def called(command: str, **environment: str) -> list[list[str]]:
        variables = {**environment, "PATH": f"{stand_in.parent}:{os.environ['PATH']}"}
        done = subprocess.run(["bash", "-c", command], env=os.environ | variables, cwd=tmp_path, capture_output=True)
        assert done.returncode == 0, done.stderr
        found = [call.split() for call in words.read_text().split("---\n")]
        words.unlink()
        return found

    return called


def flags_of(calls: list[list[str]]) -> tuple[int, list[str]]:
    """Number of processes and the flags of pretrain_gpt.py in the msrun call among a script's calls."""
    launch = next(call for call in calls if "msrun" in call)
    processes = next(word for word in launch if word.startswith("--worker_num="))
    return int(processes.partition("=")[2]), launch[launch.index(str(SCRIPT.parent / "pretrain_gpt.py")) + 1 :]


def test_all_weights_are_trained_until_the_model_knows_the_answers(shown, data, tmp_path):
    """finetune.sh with ADAPTERS=no, its training run on a rank of the pool: the exported model answers every question
    of the data with the data's own answer."""
    model = speaking_model("hf/qwen2", "hf_qwen2", tmp_path)
    tuning = {"ADAPTERS": "no", "NPROC": "1", "LR": "2e-2", "EPOCHS": "60"}
    calls = shown(f"bash {SCRIPT} {model} {' '.join(ALL_TRAIN)}", **data, **tuning)
    _, flags = flags_of(calls)
    run(1, trained, flags)
    conversion = next(call for call in calls if "convert" in call)
    assert convert([*conversion[3:], "--logits", "no"]) == 0
    rows = [json.loads(line) for line in Path(data["DATA"]).read_text(encoding="utf-8").splitlines()]
    questions = ["\n".join(part for part in (row["instruction"], row["input"]) if part) for row in rows]
    assert answers(tmp_path / "out" / "huggingface", questions, 40) == [row["output"] for row in rows]


PAGE = (ROOT / "docs" / "fine-tuning.md").read_text(encoding="utf-8")
SHOWN = [line.partition("#")[0].strip() for line in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)[0].splitlines()]


def test_the_commands_of_the_page_are_accepted(shown, tmp_path, monkeypatch):
    """Each of the page's five finetune.sh commands: the training's flags have no finding for the number of processes
    started and the data prepared (the model has 256 positions)."""
    monkeypatch.chdir(tmp_path)
    speaking_model("hf/llama", "hf_qwen2", tmp_path).rename(tmp_path / "MODEL")
    shutil.copy(EXAMPLES, tmp_path / "alpaca.jsonl")
    sizes = {"SEQ_LENGTH": "128", "OUTPUT": str(tmp_path / "out")}
    assert len(SHOWN) == 5
    for command in SHOWN:
        processes, flags = flags_of(shown(command.replace("examples/gpt/finetune.sh", str(SCRIPT)), **sizes))
        reading = read([word.replace("2048", "128") for word in flags], world_size=processes)
        assert not reading.findings, command


def test_what_is_no_model_is_named(tmp_path):
    """finetune.sh names a folder that is no HuggingFace model, and the file that it lacks, before data are prepared."""
    for missing in ("config.json", "tokenizer_config.json"):
        done = subprocess.run(["bash", SCRIPT, tmp_path], capture_output=True, text=True, env=os.environ)
        said = f"error: {tmp_path}: has no {missing}; give the folder of a HuggingFace model"
        assert done.returncode == 2 and done.stderr.startswith(said)
        (tmp_path / missing).write_text("{}")
