"""The commands that pages show, the files that they expect, and how each kind of command is tried."""

import argparse
import contextlib
import gzip
import io
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from unittest.mock import patch

from mapping.__main__ import main as mapping_main
from mapping.reading import read, stops
from parallel_core.data.preprocess.command_line import main as preprocess
from tests.support.assets import ROOT
from tests.support.distributed import run
from tests.support.speaking_model import speaking_model
from tests.support.tokenizer_records import unpack
from tests.support.user_scripts import run_script

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "tests/README.md"])
"""The paths of every page of the project."""
MODEL = (
    "--num-layers 1 --hidden-size 32 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 "
    "--micro-batch-size 1 --global-batch-size 1 --train-iters 2 --lr 1e-3 --eval-iters 0 --log-interval 1 "
    "--save output --save-interval 2 --split 100,0,0 --data-path first_text_document "
    "--tokenizer-type HuggingFaceTokenizer --tokenizer-model tokenizer"
)
"""Flags of the training that has left the folder `output`, which the pages' commands read."""
SCRIPT = f"torchrun --nproc_per_node ${{2:-1}} mine.py --wandb-exp-name $1 {MODEL.replace('--save output ', '')}\n"


def commands(page: Path) -> list[str]:
    """Every command of the bash blocks of a page, without comments; a line that ends with `\\` goes on."""
    blocks = re.findall(r"```bash\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [command for line in lines if (command := re.sub(r"(^|\s)#.*", "", line).strip())]


def write_files(page: Path, folder: Path) -> None:
    """Write the page's blocks that begin with their file's name, such as `# run.yaml`."""
    for name, text in re.findall(r"```\w+\n# (\w+\.\w+)\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        (folder / name).write_text(text, encoding="utf-8")


def make_files(folder: Path) -> Path:
    """Make everything that the pages' commands read in `folder`, by the names that the pages use; the folder."""
    for name in ("examples", "benchmarks", "mapping", "parallel_core", "pynative", "tests", "docs"):
        (folder / name).symlink_to(ROOT / name)
    (unpack(folder / "recorded") / "hf_qwen2").rename(folder / "tokenizer")
    lines = "".join(json.dumps({"title": f"Title {n}", "text": f"Some text {n}. " * 9}) + "\n" for n in range(5))
    (folder / "corpus.jsonl").write_text(lines)
    (folder / "shards").mkdir()
    for name in "ab":
        (folder / "shards" / f"{name}.jsonl.gz").write_bytes(gzip.compress(f"{lines}no JSON\n".encode()))
    shutil.copy(ROOT / "examples/gpt/instructions.jsonl", folder / "alpaca.jsonl")
    rows = {"prompts": {"text": "def "}, "held": {"prompt": "1 + 1 = ", "answer": "2"}}
    for name, row in rows.items():
        (folder / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    speaking_model("hf/llama", "hf_llama", folder / "models").rename(folder / "MODEL")
    config = folder / "MODEL" / "config.json"
    config.write_text(config.read_text().replace('"max_position_embeddings": 256', '"max_position_embeddings": 4096'))
    (folder / "pretrain_llama.sh").write_text(SCRIPT)
    (folder / "mine.py").write_text("import torch\n")
    tokenizer = ["--append-eod", "--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", f"{folder}/tokenizer"]
    preprocess(["--input", f"{folder}/corpus.jsonl", "--output-prefix", f"{folder}/first", *tokenizer])
    conversations = ["--tokenizer-type", "PretrainedFromHF", "--tokenizer-name-or-path", f"{folder}/MODEL"]
    kind = ["--handler-name", "AlpacaStyleInstructionHandler", "--prompt-type", "qwen", "--seq-length", "256"]
    for output in ("new", "tuned"):
        (folder / output / "data").mkdir(parents=True)
        written = ["--input", f"{folder}/alpaca.jsonl", "--output-prefix", f"{folder}/{output}/data/conversations"]
        preprocess([*written, *kind, *conversations])
    (folder / "second").symlink_to(folder / "output")
    assert run(1, run_script, ROOT / "examples/gpt/pretrain_gpt.py", MODEL.split(), folder) == [(0, "")]
    return folder


def in_process(command: str, environment: dict[str, str] | None = None) -> None:
    """Run `python -m MODULE ...` or `python FILE.py ...` inside this process; raises if it fails or prints nothing."""
    words = shlex.split(command)[1:]
    with contextlib.ExitStack() as stack:
        said = stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
        stack.enter_context(patch.dict(os.environ, environment or {}))
        stack.enter_context(patch.object(sys, "argv", words[1:] if words[0] == "-m" else words))
        try:
            if words[:2] == ["-m", "mapping"]:
                mapping_main()
            elif words[0] == "-m":
                runpy.run_module(words[1], run_name="__main__", alter_sys=False)
            else:
                runpy.run_path(words[0], run_name="__main__")
        except SystemExit as ended:
            assert ended.code in (None, 0), (command, ended.code, said.getvalue())
    assert said.getvalue().strip(), command


def in_a_rank(command: str) -> None:
    """Run a command of the engine inside a rank of the pool, so that MindSpore is imported once for all of them."""
    words = shlex.split(command.replace("-m mapping", str(ROOT / "mapping/__main__.py")))
    (outcome,) = run(1, run_script, Path(words[1]).absolute(), words[2:], Path.cwd())
    assert outcome[0] == 0, (command, outcome)


def explained(command: str) -> None:
    """Run a command that a page cuts short by `...`, without the dots; errors about what is missing are accepted."""
    with contextlib.suppress(AssertionError):
        in_process(command.replace(" ...", ""))


def converted(command: str) -> None:
    """Run a conversion without its comparison of logits, which other tests do."""
    in_process(f"{command} --logits no")


def parsed(command: str) -> None:
    """Read a command's options and stop: what it does takes minutes, or has a test of its own."""
    originals = {name: getattr(argparse.ArgumentParser, name) for name in ("parse_args", "parse_known_args")}

    def ending(name: str) -> Callable:
        def read_and_end(self: argparse.ArgumentParser, *arguments, **named):
            found = originals[name](self, *arguments, **named)
            if sys._getframe(1).f_code.co_name == "parse_args":  # parse_args reports unknown words after it
                return found
            print("accepted")
            raise SystemExit(0)

        return read_and_end

    with patch.multiple(argparse.ArgumentParser, **{name: ending(name) for name in originals}):
        in_process(command)


def by_stand_ins(command: str, names: Sequence[str], environment: dict[str, str]) -> list[list[str]]:
    """Run the command by bash, with programs of these names that only record their words: the words of each call, in
    order."""
    with tempfile.TemporaryDirectory() as place:
        for name in names:
            (Path(place) / name).write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {place}/$(date +%s%N).words\n')
            (Path(place) / name).chmod(0o755)
        path = {"PATH": f"{place}:{os.path.dirname(sys.executable)}:{os.environ['PATH']}"}
        subprocess.run(["bash", "-c", command], env=os.environ | path | environment, check=False, capture_output=True)
        return [file.read_text().splitlines() for file in sorted(Path(place).glob("*.words"))]


def accepted(words: Sequence[str]) -> None:
    """Check that the flags behind the program in an msrun command start on as many processes."""
    processes = int(next(word for word in words if word.startswith("--worker_num=")).partition("=")[2])
    program = next(i for i, word in enumerate(words) if word.endswith(".py"))
    assert list(map(str, stops(read(words[program + 1 :], world_size=processes)))) == []


def example(command: str) -> None:
    """Run an example's script with a stand-in for python, and check the msrun command that it gives."""
    calls = by_stand_ins(command, ["python"], {"OUTPUT": str(Path.cwd() / "new"), "HOME": "/home/me"})
    (words, *_) = [words for words in calls if "msrun" in words and "--check" not in words]
    accepted(words)


def launched(command: str) -> None:
    """Run `launch` with a stand-in for msrun, and check the command that it starts, if it does not only print it."""
    calls = by_stand_ins(command, ["msrun"], {"PYTHONPATH": str(ROOT)})
    assert "--print" in command or calls, command
    for words in calls:
        accepted(words)


def of_msrun(command: str) -> None:
    """Check a command of msrun itself, run by a stand-in."""
    (words,) = by_stand_ins(command, ["msrun"], {})
    accepted(words)


def installed(command: str) -> None:
    """Check that the extras in a pip command are those of setup.py."""
    extras = re.findall(r"\[([\w,]+)\]", command)
    assert all(f'"{extra}": ' in (ROOT / "setup.py").read_text() for names in extras for extra in names.split(","))


def is_there(command: str) -> None:
    """Check that the files of tests, docs and benchmarks that the command names exist."""
    named = re.findall(r"(?:tests|docs|benchmarks)/[\w./]+", command)
    assert all((ROOT / name).exists() for name in named), command


KINDS: list[tuple[str, Callable[[str], None]]] = [
    (r"python (-m mapping (generate|evaluate)|examples/gpt/pretrain_gpt.py|train.py) ", in_a_rank),
    (r"python -m mapping explain .*\.\.\.", explained),
    (r"python -m mapping convert .*", converted),
    (r"python -m mapping launch ", launched),
    (r"python -m mapping report .*--watch", parsed),
    (r"python -m mapping (plan --calibrate|compare CASE_DIR)", is_there),
    (r"python -m mapping explain --doc", is_there),
    (r"python -m (mapping|parallel_core\.\w+) ", in_process),
    (r"python (-m benchmarks\.megatron|benchmarks/|examples/)", parsed),
    (r"([A-Z_]+=\S* )*bash examples/gpt/\w+\.sh", example),
    (r"msrun ", of_msrun),
    (r"(\S+/)?pip install ", installed),
    (r"python -m pytest|python docs/|ruff|git |tensorboard |mkdocs |python -m venv|source ", is_there),
]
"""(pattern of a command's beginning, function that tries it); the first that fits counts."""


@cache
def try_command(command: str) -> None:
    """Try a command by its kind, once for all pages that show it; a command of no kind is an error."""
    for beginning, how in KINDS:
        if re.match(beginning, command):
            return how(command)
    raise AssertionError(f"{command}: is of no kind of tests/support/pages.py")
