"""The commands that the READMEs show: the quick ones run, launches are accepted flag by flag, both languages agree."""

import os
import re
import shlex
import subprocess
import sys

import pytest

from mapping.reading import read, stops
from tests.support.assets import ROOT
from tests.support.checkpoint_cases import unpack


def commands(page: str) -> list[str]:
    """Every line of the bash blocks of a page, without comments."""
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    return [line.partition("#")[0].strip() for block in blocks for line in block.splitlines() if line.strip()]


SHOWN = commands("README.md")
PLANS = [
    command
    for command in [*SHOWN, *commands("docs/layouts.md")]
    if re.match(r"python -m (parallel_core\.[a-z]+|mapping explain) ", command) and "..." not in command
]
SCRIPTS = [command for command in SHOWN if command.startswith("python -m mapping launch ")]
CONVERSIONS = [command for command in SHOWN if re.match("python -m mapping (convert|inspect) ", command)]
LAUNCHES = [command for command in SHOWN if "pretrain_gpt.sh" in command and "pip install" not in command]


def test_both_languages_show_the_same():
    """A command that is added to one page is added to the other."""
    assert commands("README.zh-CN.md") == SHOWN
    assert len(PLANS) >= 2 and len(LAUNCHES) >= 5


def test_the_first_page_is_short():
    """One evening's reader sees everything on it; details have pages."""
    assert all(
        len((ROOT / page).read_text(encoding="utf-8").splitlines()) <= 130 for page in ("README.md", "README.zh-CN.md")
    )


def test_both_languages_give_the_same_figures():
    """A figure that is measured anew on one page is written on the other."""
    of_page = [
        set(re.findall(r"\d+\.\d+", (ROOT / page).read_text(encoding="utf-8")))
        for page in ("README.md", "README.zh-CN.md")
    ]
    assert len(of_page[0]) > 20 and of_page[0] == of_page[1]


@pytest.mark.parametrize("command", PLANS)
def test_a_plan_is_printed(command):
    """What needs no device runs as shown."""
    done = subprocess.run([sys.executable, *shlex.split(command)[1:]], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr


@pytest.mark.parametrize("command", SCRIPTS)
def test_a_script_is_printed_and_started(command, tmp_path):
    """With the argument that it is given, by an msrun that says what it is told."""
    script = "torchrun --nproc_per_node 2 mine.py --size $1"
    for name, text in {"pretrain_llama.sh": script, "mine.py": "", "msrun": "#!/bin/sh\necho started"}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    words = [sys.executable, *shlex.split(command)[1:]]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, env=environment)
    expected = "--size 7B" if "--print" in words else "started"
    assert done.returncode == 0 and expected in done.stdout and len(SCRIPTS) == 2, done.stderr


@pytest.mark.parametrize("case", ["hf/llama", "legacy/llama_tp2_bf16"])
def test_checkpoints_are_converted(case, tmp_path):
    """The commands run one after another, from a folder of HuggingFace and from one of Megatron-LM; the engine computes
    logits in one of them."""
    unpack(case, tmp_path).rename(tmp_path / "MODEL")
    assert len(CONVERSIONS) == 4
    computes = case == "hf/llama"
    for command in CONVERSIONS:
        words = [sys.executable, *shlex.split(command)[1:]]
        if " convert " in command:
            words += ["--logits", "yes" if computes else "no"]
            computes = False
        done = subprocess.run(words, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True)
        assert done.returncode == 0 and done.stdout.strip(), done.stderr


@pytest.mark.parametrize("command", LAUNCHES)
def test_a_launch_asks_for_what_can_be_done(command, tmp_path):
    """The script hands msrun a command line that the mapping accepts for as many processes as it starts."""
    stand_in = tmp_path / "python"
    stand_in.write_text(
        '#!/bin/sh\ncase "$*" in *mapping.launch*) printf "%s\\n" "$@" > "$0.arguments" ;; esac\n'  # by -m or by runpy
    )
    stand_in.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "OUTPUT": str(tmp_path), "HOME": "/home/me"}
    subprocess.run(["bash", "-c", command], env=environment, cwd=ROOT, check=False, capture_output=True)
    launched = (tmp_path / "python.arguments").read_text().splitlines()
    processes = int(next(word for word in launched if word.startswith("--worker_num=")).partition("=")[2])
    script = next(i for i, word in enumerate(launched) if word.endswith("pretrain_gpt.py"))
    outcome = read(launched[script + 1 :], world_size=processes)
    assert not stops(outcome)


PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]


def test_links_and_paths_lead_somewhere():
    """Links to files, and what stands in code quotes and begins with one of our folders."""
    targets = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        links = [link for link in re.findall(r"\]\(([^)#]+)", text) if not link.startswith("http")]
        named = re.findall(r"`((?:mapping|parallel_core|pynative|examples|benchmarks|tests|docs)/[\w./-]*)`", text)
        targets += [(page, page.parent / link) for link in links] + [(page, ROOT / path) for path in named]
    assert len(targets) > 50
    assert [(page, path) for page, path in targets if not (path.exists() or path.with_suffix(".py").exists())] == []


def test_the_index_has_every_page():
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    assert [page.name for page in PAGES if page.parent.name == "docs" and page.name not in index] == []
