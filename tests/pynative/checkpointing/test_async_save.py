"""--async-save: checkpoints that are written while training goes on, and what callbacks keep in them."""

import errno
import threading
from unittest.mock import patch

import pytest

from parallel_core.checkpoint import commit
from parallel_core.checkpoint.manifest import Manifest
from parallel_core.checkpoint.snapshot import Snapshot
from tests.support.distributed import run
from tests.support.pretraining import BATCHES, pretrain_tiny

WRITE_PART = "pynative.checkpointing.save.write_part"
FLAGS = f"{BATCHES} --train-iters 4 --save-interval 2 --use-distributed-optimizer"
BIASED = (
    f"{FLAGS} --num-experts 2 --moe-token-dispatcher-type alltoall "
    "--moe-router-enable-expert-bias --moe-router-score-function sigmoid"
)


def meddling():
    """A callback that multiplies the trained weights by 1.5 before each update and when training ends, and counts
    forwards in a parameter of the model that is not trained."""
    from mindspore import Parameter, Tensor

    from pynative.memory import in_place
    from pynative.parameter import write_parameter
    from pynative.training.callbacks import Callback

    class Meddles(Callback):
        def on_train_begin(self, state):
            (chunk,) = state.model
            chunk.seen = Parameter(Tensor([0.0]), name="seen", requires_grad=False)
            chunk.register_forward_pre_hook(lambda cell, inputs: in_place.assign_add(chunk.seen, Tensor([1.0])))

        def on_gradients(self, state, gradient_scale):
            self.on_train_end(state)

        def on_train_end(self, state):
            for parameter in state.model.get_parameters():
                if parameter.requires_grad:
                    write_parameter(parameter, parameter.asnumpy() * 1.5)

    return Meddles()


def train(backend, flags: str) -> None:
    pretrain_tiny(backend, f"{BIASED} {flags}", callbacks=[meddling()])


def train_with_a_slow_copier(backend, flags: str) -> None:
    """Train while the saving thread, after its first copy, waits until the main thread asks for all copies, which it
    must do before weights change; at the latest until the step's end."""
    from pynative.training.callbacks import Callback

    asked, take, finish = threading.Event(), Snapshot._take, Snapshot.finish

    class Ended(Callback):
        def on_step_end(self, state):
            asked.set()
            asked.clear()

    def take_and_wait(snapshot):
        piece = take(snapshot)
        if threading.current_thread().name == "checkpoint" and piece is not None:
            assert asked.wait(60)
        return piece

    def ask(snapshot):
        if threading.current_thread().name != "checkpoint":
            asked.set()
        finish(snapshot)

    with patch.object(Snapshot, "_take", take_and_wait), patch.object(Snapshot, "finish", ask):
        pretrain_tiny(backend, f"{BIASED} {flags}", callbacks=[meddling(), Ended()])


def test_what_is_written_in_the_background_is_what_was_there_when_it_began(tmp_path):
    """Checkpoints 2 and 4 hold what a run that saves in the foreground holds, though copying starts only when step 3, a
    callback or the run's end is to change weights; experts' biases and untrained parameters included."""
    run(2, train, f"--save {tmp_path / 'waits'}")
    run(2, train_with_a_slow_copier, f"--save {tmp_path / 'goes_on'} --async-save")
    for iteration in (2, 4):
        name = commit.checkpoint_name(iteration)
        waits, goes_on = (Manifest.read(tmp_path / mode / name) for mode in ("waits", "goes_on"))
        assert waits.files == goes_on.files and waits.tensors == goes_on.tensors, iteration


def train_with_a_slow_disk(backend, directory) -> list[str | None]:
    """The tracker file's content after each step, where rank 1's file of step 2 is only written when step 3 is over."""
    from parallel_core.checkpoint.writer import write_part
    from pynative.training.callbacks import Callback

    gate, trackers = threading.Event(), []

    class Watch(Callback):
        def on_step_end(self, state):
            tracker = directory / commit.TRACKER
            trackers.append(tracker.read_text().strip() if tracker.exists() else None)
            if state.iteration == 3:
                gate.set()

    def write_when_open(*arguments):
        if backend.rank == 1:
            assert gate.wait(60)
        write_part(*arguments)

    with patch(WRITE_PART, write_when_open):
        pretrain_tiny(backend, f"{FLAGS} --save {directory} --async-save", callbacks=[Watch()])
    return trackers


def test_training_goes_on_and_nothing_is_published_before_all_ranks_have_written(tmp_path):
    """Step 3 ends while rank 1 has not written its file of step 2, which is published afterwards; step 4's checkpoint
    waits for it."""
    for trackers in run(2, train_with_a_slow_disk, tmp_path):
        assert trackers[:3] == [None] * 3 and len(trackers) == 4
    assert sorted(path.name for path in tmp_path.glob("iter_*")) == ["iter_0000002", "iter_0000004"]
    assert commit.find(tmp_path).name == commit.checkpoint_name(4)


def train_on_a_full_disk(backend, directory) -> tuple[str, int]:
    """Train with rank 1's disk full from the second checkpoint on; (message of the error, last finished step)."""
    from parallel_core.checkpoint.writer import write_part
    from pynative.checkpointing import SaveFailed
    from pynative.training.callbacks import Callback

    steps: list[int] = []

    class Count(Callback):
        def on_step_end(self, state):
            steps.append(state.iteration)

    def write_or_fail(partial, *arguments):
        if backend.rank == 1 and commit.checkpoint_name(4) in partial.name:
            raise OSError(errno.ENOSPC, "No space left on device")
        write_part(partial, *arguments)

    flags = f"{FLAGS} --save {directory} --async-save --train-iters 9 --on-save-failure stop"
    with (
        patch(WRITE_PART, write_or_fail),
        patch("pynative.checkpointing.save.PAUSES_SECONDS", (0.0,)),
        pytest.raises(SaveFailed) as caught,
    ):
        pretrain_tiny(backend, flags, callbacks=[Count()])
    return str(caught.value), steps[-1]


def test_a_failure_is_raised_on_all_ranks_at_a_later_step_and_the_earlier_checkpoint_stays(tmp_path):
    """Each rank's error has rank 1's "No space left on device", the room that is free and the newest whole checkpoint,
    step 2's."""
    (others, its_step), (message, step) = run(2, train_on_a_full_disk, tmp_path)
    assert "could not be saved: rank 1: " in others and its_step == step
    for said in (others, message):
        assert "No space left on device" in said and "MiB are free" in said
        assert str(commit.find(tmp_path)) in said, "the newest whole checkpoint is named"
    assert commit.find(tmp_path).name == commit.checkpoint_name(2)


def count_over_two_runs(backend, directory) -> list[int]:
    from pynative.training.callbacks import Callback

    class Counter(Callback):
        steps, saves = 0, 0

        def on_step_end(self, state):
            self.steps += 1

        def before_save(self, state):
            self.saves += 1

        def state_dict(self):
            return {"steps": self.steps, "saves": self.saves}

        def load_state_dict(self, state):
            self.steps, self.saves = state["steps"], state["saves"]

    first, second, flags = Counter(), Counter(), f"{FLAGS} --lr-decay-iters 4"
    pretrain_tiny(backend, f"{flags} --save {directory} --train-iters 2", callbacks=[first])
    pretrain_tiny(backend, f"{flags} --load {directory} --save {directory}", callbacks=[second])
    return [first.steps, first.saves, second.steps, second.saves]


def test_a_callback_goes_on_with_its_state(tmp_path):
    """A callback's count that is kept in the checkpoint goes on over a second run, on every rank."""
    assert run(2, count_over_two_runs, tmp_path) == [[2, 1, 4, 2]] * 2


def save_beside(backend, directory) -> None:
    """A callback saves step 3 into the run's folder by `save_checkpoint` while step 2 is not written yet in the
    background; the thread's priority cannot be lowered."""
    from parallel_core.checkpoint.writer import write_part
    from pynative.checkpointing import save_checkpoint
    from pynative.checkpointing.background import BackgroundSave
    from pynative.training.callbacks import Callback

    gate, finish, begin = threading.Event(), BackgroundSave.finish, commit.begin

    class Saves(Callback):
        def on_step_end(self, state):
            if state.iteration == 3:
                save_checkpoint(directory, state)

    def finish_it(saving):
        gate.set()
        finish(saving)

    def begin_another(root, iteration):
        partial = begin(root, iteration)
        if iteration == 3:
            gate.set()
        return partial

    def write_when_open(*arguments):
        assert gate.wait(60)
        write_part(*arguments)

    with (
        patch(WRITE_PART, write_when_open),
        patch.object(BackgroundSave, "finish", finish_it),
        patch.object(commit, "begin", begin_another),
        patch("os.setpriority", side_effect=PermissionError),
    ):
        pretrain_tiny(backend, f"{FLAGS} --save {directory} --async-save", callbacks=[Saves()])


def test_a_script_that_saves_into_the_same_folder_waits_for_what_is_under_way(tmp_path):
    """A save in the foreground waits for the one in the background: two writers would remove each other's folders as
    leftovers."""
    run(1, save_beside, tmp_path)
    assert sorted(path.name for path in tmp_path.glob("*iter_*")) == [f"iter_000000{n}" for n in (2, 3, 4)]


def train_without_a_word(backend, directory) -> None:
    from pynative.training.callbacks import CheckpointCallback

    with patch.object(CheckpointCallback, "before_change", lambda *_: None):
        pretrain_tiny(backend, f"{FLAGS} --save {directory} --async-save")


def test_a_loop_that_does_not_say_that_weights_change_is_told(tmp_path):
    """A script's loop that never calls `before_change` of its callbacks gets an error, and nothing is published: copies
    might have been made while weights changed."""
    with pytest.raises(Exception, match="calls before_change of its callbacks"):
        run(1, train_without_a_word, tmp_path)
    assert not list(tmp_path.glob("iter_*"))
