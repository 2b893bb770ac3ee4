"""The folder of --save: a run goes on in its own, and finds out before it starts that it is another run's."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from unittest import mock
from unittest.mock import patch

import pytest

from parallel_core.checkpoint import commit, lock
from parallel_core.checkpoint.manifest import Manifest
from parallel_core.config import ConfigError, Finding
from tests.support.distributed import outcomes, run
from tests.support.engine import config_of, job
from tests.support.locks import hold
from tests.support.pretraining import BATCHES, listening, pretrain_tiny
from tests.support.run_sequence import tree

FLAGS = f"{BATCHES} --train-iters 9 --save-interval 1 --dataloader-type cyclic"


def train(backend, flags: str) -> list[str]:
    """Train with these flags on this rank; the lines of the log."""
    with listening() as said:
        pretrain_tiny(backend, f"{FLAGS} {flags}")
    return said


def steps_of(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def iterations(root: Path) -> list[int]:
    return sorted(int(path.name[5:]) for path in root.glob("iter_*"))


def begin_anew(backend, root: Path) -> None:
    """Try to begin a run in a folder with iteration 3, by `pretrain`, with adapters on its own base, and by `train`:
    each is refused."""
    from pynative.training.training import train as train_by

    for flags in ("", f"--load {root} --lora-target-modules linear_qkv --lora-r 2"):
        with pytest.raises(ConfigError, match="has iteration 3 of an earlier run") as caught:
            pretrain_tiny(backend, f"{FLAGS} --save {root} {flags}")
        assert ("--load" in caught.value.findings[0].fix) is (flags == "")
    config = config_of(f"{FLAGS} --save {root}", backend.world_size)
    with pytest.raises(ConfigError, match="has iteration 3 of an earlier run"):
        train_by(SimpleNamespace(config=config), [], config.training_config)


def test_a_second_run_from_python_is_refused(tmp_path):
    """--save of another run's folder is refused before a model is built, or before the first step by `train`; no file
    changes, and no lock is held."""
    run(1, train, f"--save {tmp_path} --exit-interval 3")
    before = tree(tmp_path)
    run(1, begin_anew, tmp_path)
    assert tree(tmp_path) == before and lock.read(tmp_path) is None


def test_all_checkpoints_are_kept_unless_one_says_otherwise(tmp_path):
    """--keep-checkpoint-max 2 alone deletes checkpoints, and each deletion is logged before it happens, with
    the flag."""
    said = run(1, train, f"--save {tmp_path} --exit-interval 7")[0]
    assert iterations(tmp_path) == [1, 2, 3, 4, 5, 6, 7] and not any("Deleting" in line for line in said)
    said = run(1, train, f"--save {tmp_path} --load {tmp_path} --keep-checkpoint-max 2")[0]
    told = [line.split()[2:] for line in said if line.startswith("Deleting checkpoint")]
    assert told[0][1:] == ["(--keep-checkpoint-max", "2)"]
    assert [Path(words[0]).name for words in told] == [commit.checkpoint_name(number) for number in range(1, 8)]
    assert iterations(tmp_path) == [8, 9]


def test_figures_of_a_run_that_goes_on_are_one_file(tmp_path):
    """metrics.jsonl of a run that was killed, even halfway through a line, goes on without a gap or a double;
    --ckpt-step cuts it there; --overwrite-save moves it with the rest of the earlier run."""
    metrics = tmp_path / commit.METRICS
    run(1, train, f"--save {tmp_path} --exit-interval 3")
    first = metrics.read_text()
    with metrics.open("a") as file:
        file.write('{"step": 4, "loss": 1.0}\n{"step": 5, "lo')
    said = run(1, train, f"--save {tmp_path} --load {tmp_path} --exit-interval 5")[0]
    assert steps_of(metrics) == [1, 2, 3, 4, 5] and metrics.read_text().startswith(first)
    assert any("2 lines from step 4 on are cut" in line for line in said)
    run(1, train, f"--save {tmp_path} --load {tmp_path} --ckpt-step 2 --exit-interval 4")
    assert steps_of(metrics) == [1, 2, 3, 4] and iterations(tmp_path) == [1, 2, 3, 4, 5]
    kept, runs = metrics.read_bytes(), {Manifest.read(path).run_id for path in tmp_path.glob("iter_*")}
    assert len(runs) == 1
    said = run(1, train, f"--save {tmp_path} --overwrite-save --exit-interval 2")[0]
    aside = tmp_path / "earlier_1"
    assert sum("Moved what an earlier run has left" in line and str(aside) in line for line in said) == 1
    assert iterations(aside) == [1, 2, 3, 4, 5] and (aside / commit.METRICS).read_bytes() == kept
    assert commit.find(aside).name == commit.checkpoint_name(4)
    assert iterations(tmp_path) == [1, 2] and steps_of(metrics) == [1, 2]
    assert Manifest.read(commit.find(tmp_path)).run_id not in runs


def train_at(backend, folder: Path, flags: str) -> None:
    os.chdir(folder)
    pretrain_tiny(backend, f"{BATCHES} {flags}")


def test_figures_without_a_folder_to_save_in(tmp_path):
    """Without --save, metrics.jsonl lies in `output`, an earlier run's moved aside; a run with --load has a file of its
    own there."""
    run(1, train, f"--save {tmp_path / 'save'} --exit-interval 1")
    for flags in (
        "--train-iters 2",
        "--train-iters 3",
        f"--train-iters 9 --exit-interval 4 --load {tmp_path / 'save'}",
    ):
        run(1, train_at, tmp_path, flags)
    output = tmp_path / "output"
    files = [output / "earlier_1" / commit.METRICS, output / "earlier_2" / commit.METRICS, output / commit.METRICS]
    assert [steps_of(path) for path in files] == [[1, 2], [1, 2, 3], [2, 3, 4]]


def test_events_without_figures_are_another_runs_too(tmp_path):
    """An earlier run's events.jsonl whose metrics.jsonl is gone is moved aside, not added to."""
    for _ in range(2):
        run(1, train_at, tmp_path, "--train-iters 1")
        (tmp_path / "output" / commit.METRICS).unlink()
    lines = [(tmp_path / "output" / place / commit.EVENTS).read_text() for place in ("earlier_1", "")]
    assert [text.count('"event": "start"') for text in lines] == [1, 1]


def test_figures_that_are_moved_meanwhile_stay_whole(tmp_path):
    """A run without --save whose metrics.jsonl another run moves aside goes on writing into it."""
    seen = run(1, move_meanwhile, tmp_path)[0]
    assert seen == [1, 2, 3]


def move_meanwhile(backend, folder: Path) -> list[int]:
    from pynative.training.callbacks import Callback

    os.chdir(folder)
    output = folder / "output"

    class Moves(Callback):
        def on_step_end(self, state):
            if state.iteration == 2:
                commit.set_aside(output, [output / commit.METRICS])

    pretrain_tiny(backend, f"{BATCHES} --train-iters 3", callbacks=[Moves()])
    assert not (output / commit.METRICS).exists()
    return steps_of(output / "earlier_1" / commit.METRICS)


def test_a_job_that_writes_there_keeps_others_out(tmp_path):
    """A folder that another process holds: refused on all ranks before the first step with its process and job; once
    that process is killed, the folder is free."""
    other = hold(tmp_path, SLURM_JOB_ID="77")
    try:
        first, second = outcomes(2, train, f"--save {tmp_path}")
        assert (
            first.kind == "ConfigError" and f"process {other.pid} on" in first.text and "SLURM_JOB_ID 77" in first.text
        )
        assert second.kind == "PeerFailed" and not iterations(tmp_path)
    finally:
        other.kill()
        other.wait()
    said = run(2, train, f"--save {tmp_path} --exit-interval 1")[0]
    assert any("has ended without releasing it" in line for line in said) and lock.read(tmp_path) is None


def raised(error: Exception) -> Exception:
    """The exception with a traceback, as `except` sees it."""
    try:
        raise error
    except Exception as caught:
        return caught


def test_a_mistake_is_said_without_a_traceback(capsys):
    """A ConfigError that one rank alone finds (two jobs begun at once) and a disk full for the last checkpoint are
    printed as a message, no traceback."""
    from pynative.checkpointing import SaveFailed
    from pynative.collectives import failure

    finding = Finding("--save", "there", "is in use: process 7", "wait")
    told = []
    backend = SimpleNamespace(rank=0, fail=told.append)
    full = SaveFailed("x/iter_4 could not be saved: no space left (--save x: this rank writes 3 MiB)")
    for error, is_shown in ((ConfigError([finding]), False), (full, False), (ValueError("else"), True)):
        error = raised(error)
        with patch("os._exit"), patch("time.sleep"):
            failure.end(backend, error)
        printed = capsys.readouterr().err
        assert str(error) in printed.splitlines()[0] and ("Traceback" in printed) is is_shown and told[-1] is error


def save_as_a_script(backend, root: Path, step: int, process: str = "first", **named) -> str:
    """Save by `save_checkpoint` as a script does, in a process that is known by this name; the text of SaveFailed, or
    ""."""
    from pynative import dist_checkpointing
    from pynative.checkpointing import SaveFailed
    from pynative.dist_checkpointing import save_checkpoint
    from pynative.training.training import get_model
    from pynative.transformer.gpt_model import GPTModel

    config = config_of(BATCHES, backend.world_size)
    with job(backend, config), mock.patch.object(dist_checkpointing, "_THIS_PROCESS", process):
        model = get_model(lambda **stage: GPTModel(config.model_config, **stage), config)
        try:
            save_checkpoint(config, model, ckpt_path=root, step_num=step, **named)
        except SaveFailed as error:
            return str(error)
    return ""


def test_a_scripts_checkpoints_are_kept_as_well(tmp_path):
    """`save_checkpoint` of a script keeps all unless keep_checkpoint_max is given, of which 0 is refused; moves another
    process's checkpoints aside; refuses a folder that another job holds, and leaves what that one writes as it is."""
    for step in range(7):
        assert run(1, save_as_a_script, tmp_path, step) == [""]
    assert iterations(tmp_path) == [0, 1, 2, 3, 4, 5, 6]
    assert run(2, save_as_a_script, tmp_path, 6, "second", keep_checkpoint_max=1) == ["", ""]
    assert iterations(tmp_path) == [0, 1, 2, 3, 4, 5, 6] and iterations(tmp_path / "earlier_1") == [6]
    with pytest.raises(ValueError, match="keep_checkpoint_max=0: must be at least 1"):
        run(1, save_as_a_script, tmp_path, 6, keep_checkpoint_max=0)
    other = hold(tmp_path)
    try:
        partial = commit.begin(tmp_path, 7)
        (partial / "of the other").touch()
        (text,) = run(1, save_as_a_script, tmp_path, 7)
        assert f"process {other.pid} on" in text and iterations(tmp_path)[-1] == 6
        assert (partial / "of the other").exists()
    finally:
        other.kill()
        other.wait()
