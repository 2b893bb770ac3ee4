"""A launch script is run with stand-ins for its launchers; what they are told becomes msrun's command.

msrun itself is a few lines of shell here, which say what they were given. The scripts have the constructions of public
ones.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import psutil
import pytest

from mapping.launch.__main__ import main
from mapping.launch.launchers import LAUNCHERS, tasks
from mapping.launch.stand_in import split
from mapping.launch.start import without_noise
from tests.support.assets import ROOT

pytestmark = pytest.mark.slow

FLAGS = (
    "--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 16 --max-position-embeddings 16 --lr 1e-3 "
    "--micro-batch-size 1 --train-iters 2 --mock-data --tokenizer-type NullTokenizer --vocab-size 99"
)

ON_DATA = FLAGS.replace("--mock-data", "--data-path d")
BYTE_PAIRS = "--tokenizer-type GPT2BPETokenizer --vocab-file v --merge-file m"


def options(command: str, **environment: str) -> str:
    """The msrun options that a launcher's command line becomes, without those that are always the same, and what is
    unresolved or left out."""
    name, *words = command.split()
    launch = LAUNCHERS[name](words, environment)
    assert (launch.program, launch.arguments) == ("x.py", ["--bf16", "-1"])
    constant = {"log_dir": "msrun_log", "join": "True", "master_port": "8118", "master_addr": "127.0.0.1"}
    constant |= {"tail_worker_log": "0"}
    shown = [f"{name} {value}" for name, value in launch.options.items() if constant.get(name) != value]
    return ", ".join([*shown, *map(str, launch.unresolved), *(f"without {flag}" for flag in launch.left_out)])


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("torchrun", "worker_num 1, local_worker_num 1"),
        ("torchrun --standalone --nproc-per-node=2", "worker_num 2, local_worker_num 2"),
        ("torchrun --nproc_per_node 4 --", "worker_num 4, local_worker_num 4"),
        (
            "torchrun --nproc_per_node 8 --nnodes 2 --node_rank=1 --master_addr host0 --master_port 60 --log_dir l",
            "worker_num 16, local_worker_num 8, master_addr host0, master_port 60, log_dir l, node_rank 1, "
            "tail_worker_log 8",
        ),
        (
            "torchrun --nnodes 2 --node_rank 0 --rdzv_endpoint h:99 -r 3",
            "worker_num 2, local_worker_num 1, master_addr h, master_port 99, node_rank 0, without -r",
        ),
        ("deepspeed --num_gpus 4 --hostfile h", "worker_num 4, local_worker_num 4, without --hostfile"),
        ("deepspeed -i localhost:0,3", "worker_num 2, local_worker_num 2"),
        (
            "deepspeed --no_ssh --num_nodes 2 --num_gpus 1 --node_rank 1 --master_addr a",
            "a, node_rank 1, tail_worker_log 1",
        ),
        ("msrun --worker_num 2 --local_worker_num=2 --join True", "worker_num 2, local_worker_num 2"),
    ],
)
def test_options_of_a_launcher(command, expected):
    """Options of torchrun, srun and the other launchers become msrun's numbers of workers, host, port and log folder,
    with the first rank's log lines alone shown, since each rank logs each step; msrun's own options stay as they
    are."""
    assert options(f"{command} x.py --bf16 -1").endswith(expected)


@pytest.mark.parametrize(
    ("command", "open_ends"),
    [
        ("torchrun --nproc_per_node gpu", "--nproc_per_node gpu: must be a number from 1 on"),
        ("torchrun --nnodes --node_rank 0", "--nnodes: has no value"),
        ("torchrun --nnodes 2 --master_addr a", "--node_rank: must be given"),
        ("torchrun --nnodes 2 --node_rank 1", "--master_addr : must be given for 2 hosts"),
        ("torchrun --master_port=x", "--master_port x: must be a number"),
        ("msrun --local_worker_num=x", "--local_worker_num x: must be a number from 1 on"),
        ("deepspeed", "--num_gpus: must be given"),
        ("deepspeed -i worker-0", "--num_gpus: must be given"),
    ],
)
def test_open_ends_of_a_launcher(command, open_ends):
    """An option that is missing, has no value, or is no number is named with what must be given."""
    assert open_ends in options(f"{command} x.py --bf16 -1")


@pytest.mark.parametrize(
    ("words", "target"),
    [
        ("-m torch.distributed.run x.py -m", ("torch.distributed.run", ["x.py", "-m"])),
        ("-u -X dev -mtorch.distributed.run x.py", ("torch.distributed.run", ["x.py"])),
        ("-W ignore x.py -c", ("x.py", ["-c"])),
        ("-c print(1) x.py", ("", [])),
        ("-", ("", [])),
        ("-m", ("", [])),
    ],
)
def test_the_target_of_a_python_command(words, target):
    """A module is found behind -m with and without a space, a file behind options; code and the standard input are no
    target."""
    assert split(words.split()) == target


@pytest.mark.parametrize(
    ("given", "hosts", "on_a_host"),
    [
        ({}, "1", "1"),
        ({"nodes": "2", "ntasks": "8"}, "2", "4"),
        ({"nodes": "2", "ntasks_per_node": "8"}, "2", "8"),
        ({"ntasks": "16", "ntasks_per_node": "8"}, "2", "8"),
        ({"ntasks": "4", "SLURM_NNODES": "2", "SLURM_NTASKS_PER_NODE": "8"}, "2", "2"),
        ({"ntasks": "1", "SLURM_NNODES": "2", "SLURM_NTASKS_PER_NODE": "8"}, "1", "1"),
        ({"SLURM_NTASKS": "16", "SLURM_NNODES": "2", "SLURM_NTASKS_PER_NODE": "4"}, "2", "4"),
        ({"SLURM_NTASKS": "16", "SLURM_NNODES": "2"}, "2", "8"),
        ({"ntasks": "x", "SLURM_NNODES": "2", "SLURM_NTASKS_PER_NODE": "8"}, "2", "x"),
        ({"nodes": "", "ntasks": "2"}, "", "2"),
        ({"ntasks_per_node": ""}, "1", ""),
    ],
)
def test_tasks_of_slurm(given, hosts, on_a_host):
    """srun's --ntasks goes before the tasks on a host, which are then the most that there may be, and before Slurm's
    variables; a wrong number stays, to be named."""
    variables = {name: value for name, value in given.items() if name.startswith("SLURM")}
    options = {name: value for name, value in given.items() if name not in variables}
    assert tasks(options, variables) == {"SLURM_NNODES": hosts, "SLURM_NTASKS_PER_NODE": on_a_host}


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A working folder with a program that imports MindSpore and one that imports torch; on the PATH a stand-in of
    msrun that prints its arguments, and one of torchrun."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, lines in {
        "msrun": 'echo "msrun $@"\necho "ONE=${ONE:-} "\nexit ${MSRUN_CODE:-0}',
        "torchrun": "echo PyTorch trains",
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{lines}\n")
        (programs / name).chmod(0o755)
    (tmp_path / "mine.py").write_text("import mindspore\n")
    (tmp_path / "torchs.py").write_text("import sys\nimport torch\n")
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def launch(folder, capfd):
    """A function from a script's text to the exit code, the output and the errors of `launch`."""

    def run(script: str, *words: str, before: tuple[str, ...] = ()) -> tuple[int, str, str]:
        (folder / "script.sh").write_text(script)
        code = main([*before, "script.sh", *words])
        return code, *capfd.readouterr()

    return run


DECIDED_BY_THE_SHELL = """set -eu
if [ "$1" = big ]; then LAYERS=9; else LAYERS=2; fi
case ${3:-none} in none) LOAD="a b" ;; *) LOAD=$3 ;; esac
ARGS=(--num-layers $LAYERS --seed $((2 * 3)))
export ONE=1
mkdir -p there
cd there
TWO=2 torchrun ../mine.py "${ARGS[@]}" --load $LOAD --save "${2:-c}" "$@"
"""
STARTS = {
    "all of it": (
        DECIDED_BY_THE_SHELL,
        "../mine.py --num-layers 2 --seed 6 --load a b --save second first second\nONE=1",
    ),
    "another script": (
        "echo 'cmd=\"torchrun mine.py --seed $1\"; echo $cmd > said; eval $cmd 2>&1 | tee log' > sub.sh\nbash sub.sh 7",
        "mine.py --seed 7",
    ),
    "in the background": ("nohup torchrun mine.py --seed 4 > log 2>&1 &\nwait\ncat log", "mine.py --seed 4"),
    "a module": ("exec python3 -u -m torch.distributed.launch --use_env mine.py --seed 7", "mine.py --seed 7"),
    "srun": ("srun -l --container-image=x sh -c 'deepspeed --num_gpus 3 mine.py'", "--worker_num=3"),
    "srun of tasks": ("#SBATCH <ANY> --nodes=1 --ntasks-per-node=4\nsrun -lu sh -c 'python mine.py'", "--worker_num=4"),
    "srun asked for": ("which srun > log && srun false\ntorchrun mine.py --seed 12", "--seed 12"),
    "msrun, a helper": (
        "python -c 'import psutil; print(1 + 1)'\nmsrun --worker_num=2 mine.py",
        "2\nmsrun --worker_num=2 mine.py",
    ),
}


@pytest.mark.parametrize("name", STARTS)
def test_a_script_starts_msrun(launch, name):
    """A launch script runs in the shell as it is, and starts msrun once, with the values and variables that the shell
    computed, in place of its launcher."""
    script, expected = STARTS[name]
    code, output, errors = launch(script, "first", "second")
    assert code == 0 and expected in output and "PyTorch" not in output, output + errors
    assert output.count("msrun ") == 1


def test_options_of_an_srun_that_msrun_lacks_are_named(launch):
    """Options of an srun around a launch that do nothing here are told once, beside the launcher's own."""
    program = "bash -c 'torchrun --nproc_per_node 2 --rdzv-id 7 mine.py'"
    code, output, errors = launch(f"srun -l --container-image=x {program}")
    assert code == 0 and "--worker_num=2" in output
    assert errors.count("left out, msrun has nothing for it: --container-image --rdzv-id\n") == 1


def test_print_shows_what_would_run_and_ends_the_script_there(folder, launch):
    """--print shows folder, exported variables and the msrun command; commands of the script before the launch run,
    those behind it do not, but an EXIT trap does."""
    script = "trap 'touch cleaned' EXIT\nmkdir sub; cd sub; export ONE='1 2'\ntorchrun $1 ../mine.py &\nwait; touch on"
    code, output, errors = launch(script, "--nproc_per_node=2", before=("--print",))
    first, second, *command = output.splitlines()
    assert (code, errors) == (0, "") and (first, second) == (f"cd {folder}/sub", "export ONE='1 2'")
    assert [line.strip(" \\") for line in command] == [
        "msrun",
        "--worker_num=2",
        "--local_worker_num=2",
        "--master_addr=127.0.0.1",
        "--master_port=8118",
        "--log_dir=msrun_log",
        "--join=True",
        "--tail_worker_log=0",
        "../mine.py",
    ]
    assert (folder / "sub" / "cleaned").exists() and not (folder / "sub" / "on").exists()


def test_print_says_which_flags_do_nothing(launch):
    """--print lists the program's flags without effect."""
    code, _, errors = launch(f"torchrun torchs.py {FLAGS} --sequence-parallel", before=("--print",))
    assert code == 0 and "launch: ignored: --sequence-parallel: no effect" in errors


NOT_STARTED = [
    ("torchrun --nproc_per_node $N mine.py", 1, "--nproc_per_node mine.py: must be a number"),
    ("torchrun mine.py --load $1 --save x > log 2>&1", 1, "--load: has no value"),
    ('torchrun mine.py --unknown "$1" | tee log', 1, "--unknown: has no value"),
    ("torchrun --master_addr the address mine.py", 1, "the program address: is no Python file"),
    ("srun --nodes $N --ntasks 2 python mine.py", 1, "--nodes: has no value"),
    ("srun -N 2 -n 4 python mine.py", 1, "SLURM_NODEID: must be given"),
    ("torchrun torchs.py --num-layer 2 > log 2>&1", 2, "--num-layer: there is no such flag"),
    (f"torchrun --nproc_per_node 3 torchs.py --tensor-model-parallel-size 2 {FLAGS}", 2, "divide the 3 processes"),
    (f"torchrun torchs.py {FLAGS} --num-layers 96 --hidden-size 122880", 2, "error: memory of a rank 2"),
    (f"torchrun torchs.py {FLAGS} --device-target Ascend", 2, "error: --device-target Ascend: this host has no"),
    (f"torchrun torchs.py {FLAGS.replace('--mock-data', '')}", 2, "error: training data: give exactly one of"),
    (f"touch d.bin; head -c 9 torchs.py > d.idx; torchrun torchs.py {ON_DATA}", 2, "--data-path d: d.idx is damaged"),
    (f"echo [ > v; touch m; torchrun torchs.py {FLAGS} {BYTE_PAIRS}", 2, "--vocab-file v: expected a JSON object"),
    ("/opt/bin/torchrun mine.py", 1, "script.sh:1: /opt/bin/torchrun: no stand-in"),
    ("\n$PYTHON -m torch.distributed.run mine.py", 1, "script.sh:2: $PYTHON -m torch.distributed.run"),
    ("python -c 'exit(3)'", 1, "ended with 3 and has launched nothing"),
]


@pytest.mark.parametrize(("script", "code", "named"), NOT_STARTED)
def test_what_is_not_started(launch, script, code, named):
    """A launch that cannot be translated (exit code 1) or whose flags are wrong (2) is named on the terminal, wherever
    the script sends its output, and starts nothing."""
    found, output, errors = launch(script)
    assert found == code and named in errors
    assert "PyTorch" not in output and "msrun " not in output


def test_what_is_open_is_printed_all_the_same(launch):
    """--print shows a command with unknown values (`--worker_num=?`) and names them, exit code 1."""
    code, output, errors = launch("torchrun --nproc_per_node auto mine.py --load\ntouch on", before=("--print",))
    assert code == 1 and "--worker_num=?" in output and output.endswith("--load\n")
    assert "--nproc_per_node auto: must be a number" in errors and "--load: has no value" in errors


def test_a_check_starts_nothing_and_misses_no_data(folder, capfd):
    """--check examines flags and the folders to load without a start, and does not ask for data, which may be made
    later; a start does."""
    command = f"msrun --worker_num=2 --local_worker_num=2 --join=True torchs.py {FLAGS} --data-path nowhere"
    words = command.replace("--mock-data ", "").split()
    assert main(["--check", *words]) == 0 and "msrun " not in capfd.readouterr().out
    assert main(["--check", *words, "--load", "nowhere"]) == 2
    assert [line for line in capfd.readouterr().err.splitlines() if "error" in line] == [
        "error: --load nowhere: there is no such folder; give the path of a checkpoint, or leave it out"
    ]
    assert main(words) == 2 and "--data-path nowhere" in capfd.readouterr().err


def test_a_program_that_needs_pytorch_is_replaced(launch):
    """A program that imports torch is replaced by the example, which takes the same flags, or by --program."""
    script = f"torchrun torchs.py {FLAGS}"
    code, output, errors = launch(script)
    example = ROOT / "examples" / "gpt" / "pretrain_gpt.py"
    assert code == 0 and f"{example} {FLAGS}" in output
    assert f"launch: torchs.py is PyTorch's: {example} starts in its place" in errors
    code, output, errors = launch(script, before=("--program", "mine.py"))
    assert code == 0 and f"/mine.py {FLAGS}" in output and errors == ""


def test_the_exit_code_is_the_scripts(launch, monkeypatch):
    """`launch` ends with the script's exit code, whether it is msrun's or one that the script sets."""
    monkeypatch.setenv("MSRUN_CODE", "7")
    assert launch("torchrun mine.py")[0] == 7
    assert launch("torchrun mine.py || kill -KILL $$")[0] == 137


def test_ranks_that_do_not_watch_msrun_yet_end_when_it_is_killed(folder, launch):
    """A rank that was just started, in a session of its own, is ended when msrun is killed."""
    (folder / "programs" / "msrun").write_text("#!/bin/sh\nsetsid sleep 600 &\necho $! > rank\nkill -KILL $$\n")
    assert launch("torchrun mine.py")[0] == 128 + signal.SIGKILL
    assert not psutil.pid_exists(int((folder / "rank").read_text()))


WAITS = """#!/bin/sh
trap 'echo told >> log; exit 0' INT
touch started
while :; do sleep 0.1; done
"""


def test_ctrl_c_ends_the_script(folder):
    """Ctrl-C ends msrun, though it ends with 0, and the script goes no further; `launch` ends by SIGINT."""
    (folder / "programs" / "msrun").write_text(WAITS)
    (folder / "script.sh").write_text("torchrun mine.py\ntouch on")
    command = [sys.executable, "-m", "mapping.launch", "script.sh"]
    process = subprocess.Popen(command, start_new_session=True)
    while not (folder / "started").exists():
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(20) == -signal.SIGINT
    assert (folder / "log").read_text() == "told\n" and not (folder / "on").exists()


HEARS = """#!/usr/bin/env python3
import signal, sys, time
signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
open("started", "w").close()
time.sleep(60)
"""


def test_ctrl_c_ends_a_script_that_was_started_in_the_background(folder):
    """SIGINT to a script in the background, whose shell ignores SIGINT, ends msrun and the script with exit code
    130."""
    (folder / "programs" / "msrun").write_text(HEARS)
    (folder / "script.sh").write_text("set -e\npython -m mapping.launch msrun mine.py\ntouch on")
    ignores = partial(signal.signal, signal.SIGINT, signal.SIG_IGN)
    process = subprocess.Popen(["bash", "script.sh"], start_new_session=True, preexec_fn=ignores)
    while not (folder / "started").exists():
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(20) == 128 + signal.SIGINT and not (folder / "on").exists()


LOSES = """#!/usr/bin/env python3
import signal, sys, time
heard = []
signal.signal(signal.SIGINT, lambda *_: sys.exit(0) if heard else heard.append(1))
open("started", "w").close()
time.sleep(60)
"""


def test_ctrl_c_is_said_again_to_an_msrun_that_has_lost_it(folder):
    """SIGINT is repeated to an msrun that lost the first one, as Python does within a weak reference's callback during
    imports."""
    (folder / "programs" / "msrun").write_text(LOSES)
    process = subprocess.Popen([sys.executable, "-m", "mapping.launch", "msrun", "mine.py"], start_new_session=True)
    while not (folder / "started").exists():
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(20) == -signal.SIGINT


def test_msruns_noise_is_left_out():
    """`without_noise` leaves out msrun's own traceback, two of its warnings and the environment in its processes'
    lines, and keeps a rank's traceback."""
    warning = "[WARNING] ME(1:2,MainProcess):2026-01-01 [mindspore/parallel/cluster/process_entity/_api.py:275] "
    noise = [f"{warning}Distributed job is spawned.\n", f"{warning}The '--tail_worker_log' is:0, which doesn't\n"]
    lines = """Start worker process with rank id:0, log file:a.log. Environment variable [RANK_ID=0] is
Traceback (most recent call last):
  File "train.py", line 1
ValueError: of a rank
Traceback (most recent call last):
  File "/bin/msrun", line 8, in <module>
    sys.exit(main())
RuntimeError: Distributed job exited with exception. Please check logs
""".splitlines(keepends=True)
    assert list(without_noise(iter([*noise, *lines]))) == [
        "Start worker process with rank id:0, log file:a.log.\n",
        *lines[1:4],
        lines[7],
    ]
