"""A launch script becomes the msrun command with the same processes and arguments, without being executed."""

from __future__ import annotations

import pytest

from mapping.launch import main, translate
from mapping.readers.shell import read_script

SCRIPT = r"""#!/bin/bash
# a comment with torchrun in it
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS=8
MASTER_PORT=${MASTER_PORT:-6000}
NODES=2   # two hosts
WORLD=$(($GPUS*$NODES))
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS
    --nnodes $NODES
    --node_rank=1
    --master_addr host0
    --master_port $MASTER_PORT
)
GPT_ARGS="
    --num-layers 4 \
    --split 949,50,1
"
DATA_ARGS=(--data-path "my data" 'it$elf')
LAUNCHER
"""


def words(launcher: str, environment: dict[str, str] | None = None) -> list[str]:
    return translate(SCRIPT.replace("LAUNCHER", launcher), environment or {})[0]


@pytest.mark.parametrize(
    "launcher",
    [
        "torchrun",
        "/opt/bin/torchrun",
        "python -m torch.distributed.launch",
        "exec python3 -u -m torch.distributed.run",
        "RANK=0 torchrun",
    ],
)
def test_every_way_to_launch_is_found(launcher):
    command = words(f'{launcher} ${{DISTRIBUTED_ARGS[@]}} pretrain_gpt.py "${{DATA_ARGS[@]}}" $GPT_ARGS --seed $WORLD')
    assert command == [
        "msrun",
        "--worker_num=16",
        "--local_worker_num=8",
        "--master_addr=host0",
        "--master_port=6000",
        "--node_rank=1",
        "--log_dir=msrun_log",
        "--join=True",
        "pretrain_gpt.py",
        "--data-path",
        "my data",
        "it$elf",
        "--num-layers",
        "4",
        "--split",
        "949,50,1",
        "--seed",
        "16",
    ]


def test_the_environment_fills_in_what_the_script_leaves_open():
    assert "--master_port=7000" in words("torchrun ${DISTRIBUTED_ARGS[@]} x.py", {"MASTER_PORT": "7000"})


def test_what_follows_a_pipe_or_redirection_is_not_an_argument():
    assert words("torchrun ${DISTRIBUTED_ARGS[@]} x.py --bf16 2>&1 | tee log")[-2:] == ["x.py", "--bf16"]


@pytest.mark.parametrize(
    "assignment, named",
    [
        ("A=$1", "$1"),
        ("A=$(hostname)", "$(hostname)"),
        ("A=`date`", "`date`"),
        ("A=$UNSET", "$UNSET"),
        ("if true; then A=1; else A=2; fi", "$A"),
        ("case $X in\n 7B) A=1;;\n *) A=2;;\nesac", "$A"),
        ("A=$((B+1))", "$B: is not set"),
    ],
)
def test_what_reading_cannot_tell_is_named(assignment, named):
    _, notes = translate(f"{assignment}\ntorchrun --nproc_per_node 2 x.py --load $A", {})
    assert any(named in note for note in notes), notes


def test_an_open_process_count_gives_no_command():
    command, notes = translate("torchrun --nproc_per_node $(nproc) x.py", {})
    assert not command and any("--nproc_per_node" in note for note in notes)


def test_a_script_that_launches_nothing_is_an_error(tmp_path, capsys):
    script = tmp_path / "x.sh"
    script.write_text("echo hello")
    assert main([str(script)]) == 2
    assert "torchrun" in capsys.readouterr().err


def test_options_of_the_launcher_that_are_lost_are_named():
    _, notes = translate("torchrun --nproc_per_node 2 --max_restarts 3 x.py", {})
    assert notes == ["--max_restarts: has no equivalent in msrun, it is left out"]


def test_a_here_document_is_no_command():
    command, notes = translate("cat > x <<'EOF' | tee y\ntorchrun --nproc_per_node 9 wrong.py\nEOF\ntorchrun x.py", {})
    assert command[-1] == "x.py" and not notes


def test_the_script_is_given_no_arguments():
    assert translate('torchrun --nproc_per_node 2 x.py --bf16 "$@"', {})[0][-2:] == ["x.py", "--bf16"]


def test_an_array_can_be_counted():
    assert "--worker_num=3" in translate("A=(0 1 2)\ntorchrun --nproc_per_node ${#A[@]} x.py", {})[0]


def test_a_second_launch_is_named():
    command, notes = translate("torchrun x.py\ntorchrun y.py", {})
    assert command[-1] == "x.py" and notes == ["y.py: is launched after the first program, it is left out"]


def test_what_is_not_resolved_is_not_run(tmp_path, capsys):
    script = tmp_path / "x.sh"
    script.write_text("torchrun --nproc_per_node 2 x.py --load $1")
    with pytest.raises(SystemExit) as end:
        main([str(script), "--run"])
    assert end.value.code == 2 and "$1" in capsys.readouterr().err


def test_nothing_is_executed(tmp_path):
    mark = tmp_path / "mark"
    read_script(f"touch {mark}\nA=$(touch {mark})\nB=`touch {mark}`\n")
    assert not mark.exists()
