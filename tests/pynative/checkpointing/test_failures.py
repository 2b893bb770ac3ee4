"""Failures while a checkpoint is written or read, on one rank of two: all ranks learn of it, nothing is half done.
Kills at random moments, for every kind of state: `python -m tests.support.kills`. MindSpore's files, whose own faults
tests/parallel_core/checkpoint/test_mindspore_file.py finds: `-m exhaustive`."""

import errno
import json
import os
import re
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import count
from pathlib import Path
from unittest.mock import patch

import pytest

from parallel_core.checkpoint import commit
from parallel_core.checkpoint.manifest import MANIFEST
from parallel_core.checkpoint.reader import CheckpointReader
from tests.support.checkpoint_jobs import KINDS, train
from tests.support.damage import DAMAGES, files_of
from tests.support.distributed import outcomes, run
from tests.support.dying import deaths
from tests.support.engine import config_of, job
from tests.support.gathering import digests
from tests.support.layouts import Rows
from tests.support.pretraining import BATCHES, listening, pretrain_tiny

FLAGS = f"{BATCHES} --train-iters 4 --save-interval 2 --use-distributed-optimizer"
FP16 = "--fp16 --initial-loss-scale 1024"
SAVE = "pynative.checkpointing.save"


def change(manifest: Path, **fields) -> None:
    """Change fields of a manifest and take its digest away, as somebody who edits it would."""
    content = json.loads(manifest.read_text())
    del content["digest"]
    manifest.write_text(json.dumps(content | fields))


BY_HAND = {
    "schedule taken out": lambda path, other: change(path, scheduler={}),
    "scaler of another kind": lambda path, other: change(path, loss_scaler={"kind": "dynamic"}),
}
NAMED = "last bit flipped"
FEW = ("middle bit flipped", NAMED, "cut in half", "deleted", "swapped")


def damages_of(path: Path) -> dict[str, Callable[[Path, Path], None]]:
    """Kind of damage -> a function (file, another checkpoint's file of that name) that does it, as in
    tests/parallel_core/checkpoint/test_damage.py."""
    return {name: DAMAGES[name] for name in FEW} | (BY_HAND if path.name == MANIFEST else {})


def load_what_is_damaged(backend, directory: Path, flags: str) -> dict[str, str]:
    """Damage each file of checkpoint 4 in each way and load it: "file damage" -> this rank's error. Checked: the model
    stays as it was before."""
    from pynative.checkpointing import load_checkpoint
    from pynative.training.training import pretrain
    from pynative.transformer.gpt_model import GPTModel

    config, told = config_of(f"{FLAGS} {FP16} {flags} --save {directory}", backend.world_size), {}
    with job(backend, config):
        state = pretrain(
            lambda samples: (Rows(), None, None),
            lambda **stage: GPTModel(config.model_config, **stage),
            all_config=config,
        )
        before = digests(state)
        first, second = (directory / commit.checkpoint_name(iteration) for iteration in (2, 4))
        for path in files_of(directory, second)[1:]:
            for name, damage in damages_of(path).items():
                if backend.rank == 0:
                    shutil.copytree(second, directory / "kept")
                    shutil.copy(first / path.name.replace("_4.ckpt", "_2.ckpt"), directory / "other")
                    damage(path, directory / "other")
                backend.world.barrier()
                with pytest.raises(ValueError, match=r"manifest|nothing was loaded") as caught:
                    load_checkpoint(directory, state)
                assert digests(state) == before and state.iteration == 4, (path, name)
                told[f"{path.name} {name}"] = str(caught.value)
                backend.world.barrier()
                if backend.rank == 0:
                    shutil.rmtree(second)
                    (directory / "kept").rename(second)
        backend.world.barrier()
        load_checkpoint(directory, state)
        assert digests(state) == before
    return told


@pytest.mark.parametrize("flags", ["", pytest.param("--ckpt-format ckpt", marks=pytest.mark.exhaustive)])
def test_no_rank_loads_anything_of_a_damaged_checkpoint(tmp_path, flags):
    """Both ranks raise, also if one alone would read the file; one names file, parameter and the older checkpoint to go
    on from."""
    first, second = run(2, load_what_is_damaged, tmp_path, flags)
    assert len(first) == 3 * len(FEW) + 2 and first.keys() == second.keys()
    for what, told in first.items():
        both = told + second[what]
        if what.partition(" ")[2] in BY_HAND:
            assert "schedule" in both or "loss scaler's state" in both, what
        else:
            assert what.split()[0] in both and "--ckpt-step 2" in both, what
    files = "network_rank_0-0_4.ckpt" if flags else "mp_rank_00_000.safetensors"
    flipped = next(told + second[what] for what, told in first.items() if what == f"{files} {NAMED}")
    assert re.search(r"not what was written are exp_avg_sq\.\S+", flipped)


@contextmanager
def failing(function: str, error: int, when: Callable[..., bool]) -> Iterator[None]:
    """Within the context this function raises OSError(`error`) where `when` holds of its arguments."""
    import importlib

    module, _, name = function.rpartition(".")
    original = getattr(importlib.import_module(module), name)

    def fail(*arguments, **named):
        if when(*arguments):
            raise OSError(error, os.strerror(error))
        return original(*arguments, **named)

    with patch(function, fail):
        yield


@contextmanager
def small_files(bytes_: int) -> Iterator[None]:
    """Within the context the system refuses to write more than so many bytes into a file of checkpoint 4
    (RLIMIT_FSIZE)."""
    from parallel_core.checkpoint.writer import write_part

    def write_limited(partial, *arguments):
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        if commit.checkpoint_name(4) in partial.name:
            resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_, limits[1]))
        try:
            write_part(partial, *arguments)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    with patch(f"{SAVE}.write_part", write_limited):
        yield


def _is_second(directory: Path, *arguments) -> bool:
    return bool(arguments) and arguments[0] == 4


def _is_in_second(partial: Path, *_) -> bool:
    return commit.checkpoint_name(4) in str(partial)


PLACES = {
    "its folder": (0, lambda: failing("parallel_core.checkpoint.commit.begin", errno.EROFS, _is_second)),
    "a file": (1, lambda: failing(f"{SAVE}.write_part", errno.ENOSPC, _is_in_second)),
    "half a file": (1, lambda: small_files(20_000)),
    "the manifest": (0, lambda: failing(f"{SAVE}.write_manifest", errno.ENOSPC, _is_in_second)),
    "its name": (0, lambda: failing("parallel_core.checkpoint.commit.publish", errno.EDQUOT, _is_second)),
}
"""Place at which saving checkpoint 4 fails -> (rank that fails, context in which it does)."""


MODES = ("", "--async-save")


def train_on_a_bad_disk(backend, directory: Path, place: str, flags: str) -> list[str]:
    """Train where checkpoint 4 cannot be written at this place (PLACES); the lines of this rank's log."""
    rank, fault = PLACES[place]
    with (
        fault() if backend.rank == rank else nullcontext(),
        patch(f"{SAVE}.PAUSES_SECONDS", (0.0,)),
        listening() as said,
    ):
        pretrain_tiny(backend, f"{FLAGS} --save {directory} --train-iters 9 {flags}")
    return said


@pytest.mark.parametrize(
    ("place", "flags"),
    [
        *((place, MODES[number % 2]) for number, place in enumerate(PLACES)),
        pytest.param("half a file", "--ckpt-format ckpt", marks=pytest.mark.exhaustive),
    ],
)
def test_a_disk_that_takes_no_more_ends_the_run_with_all_that_one_must_know(tmp_path, place, flags):
    """--on-save-failure stop: SaveFailed on every rank, with folder, bytes needed and free, and the newest whole
    checkpoint; nothing of the failed one is left."""
    ended = outcomes(2, train_on_a_bad_disk, tmp_path, place, f"{flags} --on-save-failure stop")
    assert [each.kind for each in ended] == ["SaveFailed"] * 2
    whole = tmp_path / commit.checkpoint_name(2)
    for each in ended:
        for words in (
            f"--save {tmp_path}: this rank writes",
            "MiB are free",
            f"the newest whole checkpoint is {whole}",
        ):
            assert words in each.text, each.text
    assert commit.find(tmp_path) == whole and CheckpointReader(whole).damaged_files() == []
    assert [path.name for path in tmp_path.glob("*iter_*")] == [whole.name]
    run(2, pretrain_tiny_in, tmp_path)
    left = sorted(path.name for path in tmp_path.iterdir() if path.is_dir())
    assert left == [commit.checkpoint_name(2), commit.checkpoint_name(4)]


@pytest.mark.parametrize(("place", "flags"), [(place, MODES[number % 2 - 1]) for number, place in enumerate(PLACES)])
def test_a_run_goes_on_without_a_checkpoint_that_cannot_be_written(tmp_path, place, flags):
    """--on-save-failure warn, the default: the save is tried again, its failure logged on every rank, and later
    checkpoints are written. --log-progress tells of those that were written, or begun in the background."""
    for rank, said in enumerate(run(2, train_on_a_bad_disk, tmp_path, place, f"{flags} --log-progress")):
        (warning,) = [line for line in said if line.startswith("NOT SAVED: ")]
        assert f"{tmp_path / commit.checkpoint_name(4)} could not be saved" in warning and "MiB are free" in warning
        tries = [line for line in said if "tried again in" in line]
        assert len(tries) == (rank == PLACES[place][0]), tries
    saved = sorted(path.name for path in tmp_path.glob("*iter_*"))
    assert saved == [commit.checkpoint_name(iteration) for iteration in (2, 6, 8, 9)]
    assert all(CheckpointReader(tmp_path / name).damaged_files() == [] for name in saved)
    is_begun = "async" in flags and place != "its folder"
    told = [line.split("\t")[4] for line in Path(tmp_path, "progress.txt").read_text().splitlines()[1:]]
    assert told == [f"Iteration: {step}" for step in ((2, 4, 6, 8, 9) if is_begun else (2, 6, 8, 9))]


def train_until_the_disk_is_full(backend, directory: Path, tries: int) -> list[str]:
    """Train where writing the last checkpoint fails the first `tries` times; the lines of the log."""
    left = iter(range(tries))

    def refused(partial: Path, *_) -> bool:
        return _is_in_second(partial) and next(left, None) is not None

    with (
        failing(f"{SAVE}.write_part", errno.EIO, refused),
        patch(f"{SAVE}.PAUSES_SECONDS", (0.0, 0.0)),
        listening() as said,
    ):
        pretrain_tiny(backend, f"{FLAGS} --save {directory}")
    return said


def test_a_disk_that_refuses_twice_is_asked_a_third_time(tmp_path):
    """A disk that fails two writes: the log says twice that it is tried again, and the third try saves step 4."""
    (said,) = run(1, train_until_the_disk_is_full, tmp_path, 2)
    assert sum("tried again" in line for line in said) == 2 and not any("NOT SAVED" in line for line in said)
    assert commit.find(tmp_path).name == commit.checkpoint_name(4)


def test_the_last_checkpoint_must_be_written(tmp_path):
    """--on-save-failure warn does not excuse the last checkpoint, as no training follows: SaveFailed, and checkpoint 2
    stays the newest."""
    (ended,) = outcomes(1, train_until_the_disk_is_full, tmp_path, 99)
    assert ended.kind == "SaveFailed" and commit.find(tmp_path).name == commit.checkpoint_name(2)


def pretrain_tiny_in(backend, directory: Path) -> None:
    pretrain_tiny(backend, f"{FLAGS} --save {directory} --load {directory} --override-opt_param-scheduler")


def die_halfway(backend, directory: Path, flags: str) -> None:
    """Train until rank 1 gets SIGKILL with half of its file of the second checkpoint written."""
    from parallel_core.checkpoint import writer

    def write_half(partial, name, tensors):
        if commit.checkpoint_name(4) in partial.name and backend.rank == 1:
            (partial / name).write_bytes(bytes(1000))
            os.kill(os.getpid(), signal.SIGKILL)
        writer.write_part(partial, name, tensors)

    with patch(f"{SAVE}.write_part", write_half):
        pretrain_tiny(backend, f"{FLAGS} {flags} --save {directory}")


@pytest.mark.parametrize("flags", ["", pytest.param("--ckpt-format ckpt", marks=pytest.mark.exhaustive)])
def test_a_rank_that_is_killed_while_it_writes_loses_nothing(tmp_path, flags):
    """The other rank is told which rank ended; the next run goes on from step 2."""
    survivor, killed = outcomes(2, die_halfway, tmp_path, flags)
    assert "exit code -9" in killed.text and survivor.kind == "PeerLost" and "rank 1" in survivor.text
    assert commit.find(tmp_path).name == commit.checkpoint_name(2)
    run(2, pretrain_tiny_in, tmp_path)
    assert commit.find(tmp_path).name == commit.checkpoint_name(4) and not list(tmp_path.glob(".iter*"))


def die_at_every_step(backend, directory: Path, flags: str) -> dict[str, list[int]]:
    """Let a child die at each change of the disk in writing, and in publishing, checkpoint 3: "writing" / "publishing"
    -> the newest whole iteration after each death."""
    from pynative.checkpointing.save import Saving
    from pynative.training.callbacks import Callback

    found: dict[str, list[int]] = {"writing": [], "publishing": []}
    numbers = count()

    def latest(root: Path) -> int:
        folder = commit.find(root)
        assert CheckpointReader(folder).damaged_files() == []
        return int(folder.name.strip(".")[5:12])

    def copied(saving: Saving) -> Saving:
        root = directory.with_name(f"trial{next(numbers)}")
        shutil.copytree(directory, root)
        return replace(saving, directory=root)

    class Dies(Callback):
        def on_step_end(self, state):
            if state.iteration != 3:
                return
            state.step_cell.buffers.finish_param_sync()
            saving = Saving.begin(directory, state)
            for rank in (1, 0):  # in turn, so that the last try of each rank is not cut short
                if backend.rank == rank:
                    found["writing"] += [latest(directory) for _ in deaths(lambda: None, lambda _: saving.write())]
                backend.world.barrier()
            if backend.rank == 0:
                for _, trial in deaths(lambda: copied(saving), lambda trial: trial.publish()):
                    found["publishing"].append(latest(trial.directory))
                    commit.clean(trial.directory)
                    assert latest(trial.directory) == found["publishing"][-1]
            backend.world.barrier()

    flags = f"{BATCHES} --train-iters 3 --save-interval 2 --keep-checkpoint-max 1 --save {directory} {flags}"
    pretrain_tiny(backend, flags, callbacks=[Dies()])
    return found


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", KINDS.keys() - {"async"})
def test_a_death_at_any_step_of_a_save_leaves_a_whole_checkpoint(tmp_path, kind):
    """For every kind of state: checkpoint 2 up to one step of the publishing, from there on 3. Whether a thread makes
    the steps (--async-save) is all the same."""
    first, second = run(2, die_at_every_step, tmp_path / "save", KINDS[kind])
    assert set(first["writing"]) == {2} and len(first["writing"]) > 5 and set(second["writing"]) <= {2}
    seen = first["publishing"]
    assert seen == sorted(seen) and set(seen) == {2, 3} and len(seen) > 15 and not second["publishing"]
    assert commit.find(tmp_path / "save").name == commit.checkpoint_name(3)


def test_float32_values_of_a_16_bit_run_are_checked_like_weights(tmp_path):
    """A float32 run takes main_param of a bfloat16 checkpoint for its weights: a wrong shape of them in an edited
    manifest is refused."""
    flags = "--train-iters 1 --override-opt_param-scheduler"
    run(1, train, f"{flags} --bf16 --save {tmp_path}")
    manifest = commit.find(tmp_path) / MANIFEST
    name = "main_param.decoder.final_layernorm.weight"
    tensors = json.loads(manifest.read_text())["tensors"]
    tensors[name]["shape"] = tensors[name]["shards"][0]["pieces"][0]["shape"] = [4]
    change(manifest, tensors=tensors)
    strict = "--dist-ckpt-strictness assume_ok_unexpected"
    with pytest.raises(Exception, match=rf"nothing was loaded:\n{name}: \[4\] in"):
        run(1, train, f"{flags} {strict} --load {tmp_path}", False)


def log_to_a_full_disk(backend, directory: Path) -> int:
    original = Path.open

    def full(path, *arguments, **named):
        if path.name == "metrics.jsonl":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original(path, *arguments, **named)

    with patch.object(Path, "open", full):
        return pretrain_tiny(backend, f"{FLAGS} --save {directory}").iteration


def test_figures_that_cannot_be_written_end_no_run(tmp_path):
    """A full disk for metrics.jsonl, whose figures are in the log as well, does not stop training or checkpoints."""
    assert run(1, log_to_a_full_disk, tmp_path) == [4] and commit.find(tmp_path).name == commit.checkpoint_name(4)


def keep_an_array(backend, directory: Path) -> None:
    import numpy as np

    from pynative.training.callbacks import Callback

    class Keeper(Callback):
        def state_dict(self):
            return {"mean": np.zeros(3)}

    pretrain_tiny(backend, f"{FLAGS} --save {directory}", callbacks=[Keeper()])


def test_a_callback_that_keeps_what_no_manifest_can_hold_is_named(tmp_path):
    """A callback whose state_dict holds an array, which JSON cannot: an error that names it on every rank, before
    anything is written."""
    for ended in outcomes(2, keep_an_array, tmp_path):
        assert "Keeper.state_dict: Object of type ndarray is not JSON serializable" in ended.text
    assert not list(tmp_path.glob("*iter*"))
