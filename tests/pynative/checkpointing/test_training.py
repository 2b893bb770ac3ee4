"""A training that stops and goes on from its checkpoint, at the same layout and at another; flags of loading and
saving."""

import logging
import shutil

import numpy as np
import pytest

from parallel_core.checkpoint import commit
from parallel_core.checkpoint.manifest import MANIFEST, Manifest
from tests.support.checkpoint_jobs import Outcome, assert_same, layout_flags, saved, train, train_on
from tests.support.damage import flip
from tests.support.distributed import run

LAYOUTS = {"one": (1, 1, 1), "tp2": (2, 2, 1), "pp2": (2, 1, 2), "dp2": (2, 1, 1), "tp2pp2": (4, 2, 2)}
"""Name -> world size, tensor-parallel size, pipeline-parallel size."""
FOUR_STEPS = "--lr-decay-iters 4 --lr-decay-style cosine --hidden-dropout 0.1 --attention-dropout 0.1"


def train_at(layout: str, flags: str, steps: bool = True) -> Outcome:
    """Rank 0's outcome of a run at this layout; steps=False: right after loading."""
    world, tensor, pipeline = LAYOUTS[layout]
    return train_on(world, f"{flags} {layout_flags(tensor, pipeline)}", steps)


def load_at(layout: str, flags: str) -> Outcome:
    """Rank 0's outcome at this layout right after loading, before a step."""
    return train_at(layout, flags, steps=False)


def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path):
    """2 steps and 2 more equal 4 to the bit, the losses too, with dropout. Other layouts: `test_resume.py`."""
    whole = train_at("one", f"{FOUR_STEPS} --train-iters 4")
    train_at("one", f"{FOUR_STEPS} --train-iters 2 --save {tmp_path}")
    resumed = train_at("one", f"{FOUR_STEPS} --train-iters 4 --load {tmp_path} --resume-crc-check")
    assert_same(resumed, whole)
    assert resumed.losses == whole.losses[2:]


@pytest.mark.parametrize(
    "optimizer", ["--optimizer muon --muon-nesterov", "--o2-optimizer", "--optimizer PmAdamW", "--optimizer lion"]
)
def test_a_run_resumes_with_the_states_of_its_optimizer(tmp_path, optimizer):
    """Muon's momentum beside Adam's averages, O2's averages in bfloat16, PmAdamW's average of weights, Lion's one
    average: resumed equals uninterrupted."""
    flags = f"{FOUR_STEPS} {optimizer} --pma-interleave-step 1"
    whole = train_at("one", f"{flags} --train-iters 4")
    train_at("one", f"{flags} --train-iters 2 --save {tmp_path}")
    resumed = train_at("one", f"{flags} --train-iters 4 --load {tmp_path}")
    assert_same(resumed, whole)
    assert resumed.losses == whole.losses[2:]


@pytest.fixture(scope="module", params=["tp2pp2", "one"])
def checkpoint(request, tmp_path_factory):
    """(folder of a run at the fixture's layout, its outcome on rank 0)."""
    directory = tmp_path_factory.mktemp("save")
    return directory, train_at(request.param, f"--save {directory} --lr-decay-iters 4")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout_takes_over_what_any_other_saved(checkpoint, layout):
    """Weights, moments, step count, schedule and place in the data equal the saving run's to the bit."""
    directory, before = checkpoint
    assert_same(load_at(layout, f"--load {directory} --lr-decay-iters 4"), before)


def test_the_files_hold_what_the_model_held(checkpoint):
    """The files have every weight and moment once; the last stage's copy of the tied embedding is not in them."""
    directory, before = checkpoint
    manifest = Manifest.read(commit.find(directory))
    assert set(manifest.weights) == set(before.weights)
    assert set(manifest.tensors) == set(before.weights) | set(before.moments)
    for name, values in (before.weights | before.moments).items():
        np.testing.assert_array_equal(saved(directory, name), values)


@pytest.mark.parametrize("flags", ["--load {} --finetune", "--load {} --no-resume-training", "--model_name_or_path {}"])
def test_weights_alone_are_taken_where_that_is_asked_for(checkpoint, flags):
    """--finetune, --no-resume-training, --model_name_or_path: the weights are loaded; iteration, samples, optimizer,
    schedule and seed begin anew."""
    directory, before = checkpoint
    after = load_at("one", f"{flags.format(directory)} --lr-decay-iters 9 --seed 7")
    np.testing.assert_equal(after.weights, before.weights)
    assert (after.iteration, after.consumed_samples, after.steps, after.scheduler["num_steps"]) == (0, 0, 0, 0)
    assert not any(values.any() for values in after.moments.values()) and after.seed == 7


@pytest.mark.parametrize("flags", ["--load {}", "--load {} --resume-training", "--resume_from_checkpoint {}"])
def test_a_run_goes_on_unless_it_must_not(checkpoint, flags):
    """--load alone takes over the whole state, as Megatron does, and so do --resume-training and
    --resume_from_checkpoint."""
    directory, before = checkpoint
    assert_same(load_at("one", f"{flags.format(directory)} --lr-decay-iters 4"), before)


def test_a_run_that_takes_weights_alone_begins_its_data_and_says_so(checkpoint):
    """--no-resume-training sees the first samples again (the learning rate is 0, so losses tell the samples), and the
    log says that it begins at step 0."""
    directory, _ = checkpoint
    flags = f"--load {directory} --lr 0 --weight-decay 0 --lr-decay-iters 9 --override-opt_param-scheduler"
    anew, first = (f"{flags} --no-resume-training", f"{flags} --new-dataset --train-iters 4")
    (outcome, lines) = run(1, logged, anew)[0]
    assert outcome.losses == train_at("one", first).losses and outcome.iteration == 2
    assert [line for line in lines if line.startswith("Loaded the weights of") and "begin at step 0" in line]


def logged(backend, flags: str) -> tuple[Outcome, list[str]]:
    """Outcome and log lines of a run on this rank."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("pynative").addHandler(handler)
    try:
        return train(backend, flags), lines
    finally:
        logging.getLogger("pynative").removeHandler(handler)


def test_no_load_optim_keeps_the_iteration(checkpoint):
    """--no-load-optim: weights and iteration are the checkpoint's, the optimizer's steps begin at 0."""
    directory, before = checkpoint
    after = load_at("one", f"--load {directory} --no-load-optim --lr-decay-iters 9")
    np.testing.assert_equal(after.weights, before.weights)
    assert after.iteration == before.iteration == 2 and after.steps == 0


def test_bytes_are_compared_with_their_checksums_unless_a_flag_forbids_it(checkpoint, tmp_path):
    """A flipped bit ends the loading; with --no-resume-crc-check it is loaded, and the log says that checksums were not
    compared."""
    directory, _ = checkpoint
    copy = shutil.copytree(directory, tmp_path / "copy")
    flip(max(copy.rglob("*.safetensors")))
    load = f"--load {copy} --lr-decay-iters 4 --train-iters 2"
    with pytest.raises(ValueError, match="damaged: not what was written"):
        run(1, logged, load)
    _, lines = run(1, logged, f"{load} --no-resume-crc-check")[0]
    assert any("not compared with their checksums (--no-resume-crc-check)" in line for line in lines)


def test_whose_schedule_counts(checkpoint):
    """Another decay by flags than in the checkpoint is refused; --override-... takes the flags', --use-checkpoint-...
    the checkpoint's; the place in the schedule is always the checkpoint's."""
    directory, before = checkpoint
    flags = f"--load {directory} --lr-decay-iters 9"
    words = r"--lr-decay-iters.* over 9 steps by the flags, 4 steps in the checkpoint.*--override"
    with pytest.raises(ValueError, match=words):
        load_at("one", flags)
    ours = load_at("one", f"{flags} --override-opt_param-scheduler")
    theirs = load_at("one", f"{flags} --use-checkpoint-opt_param-scheduler")
    assert (ours.scheduler["lr_decay_steps"], theirs.scheduler["lr_decay_steps"]) == (36, 16)
    assert ours.scheduler["num_steps"] == theirs.scheduler["num_steps"] == before.scheduler["num_steps"] == 8


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--num-layers 3", r"decoder.layers.2.input_layernorm.weight: the model has it"),
        ("--num-layers 1", r"decoder.layers.1.input_layernorm.weight: .* has it, the model does not"),
        ("--ffn-hidden-size 64", r"decoder.layers.0.mlp.linear_fc1.weight: \[128, 32\] in .*\[64, 32\] in the model"),
        ("--untie-embeddings-and-output-weights", r"output_layer.weight: the model has it"),
        ("--optimizer sgd", r"--optimizer was adam, now it is sgd.*--no-load-optim"),
    ],
)
@pytest.mark.parametrize("layout", ["one", "tp2"])
def test_a_checkpoint_that_does_not_fit_is_refused(checkpoint, layout, flags, words):
    """The error lists every name and shape in which model and checkpoint differ, on every rank."""
    directory, _ = checkpoint
    with pytest.raises(ValueError, match=words):
        load_at(layout, f"--load {directory} --lr-decay-iters 4 {flags}")


@pytest.mark.parametrize("layout", ["one", "tp2"])
@pytest.mark.parametrize("strictness", ["log_all", "ignore_all"])
def test_names_of_one_side_alone_are_skipped_on_request(checkpoint, layout, strictness):
    """The layer that the checkpoint lacks keeps its initial values, the one that the model lacks is left out; moments
    likewise. --dist-ckpt-strictness is about names: shapes must fit whatever it says."""
    directory, before = checkpoint
    flags = f"--lr-decay-iters 4 --dist-ckpt-strictness {strictness}"
    initial = load_at(layout, "--num-layers 3 --lr-decay-iters 4")
    longer = load_at(layout, f"--load {directory} {flags} --num-layers 3")
    shorter = load_at(layout, f"--load {directory} {flags} --num-layers 1")
    for after, names in ((longer, before.weights), (shorter, shorter.weights)):
        for name in names:
            np.testing.assert_array_equal(after.weights[name], before.weights[name], err_msg=name)
            np.testing.assert_array_equal(after.moments[f"exp_avg.{name}"], before.moments[f"exp_avg.{name}"])
    for name in longer.weights.keys() - before.weights.keys():
        np.testing.assert_array_equal(longer.weights[name], initial.weights[name], err_msg=name)
    assert len(longer.weights) > len(before.weights) > len(shorter.weights)
    with pytest.raises(ValueError, match=r"decoder.layers.0.mlp.linear_fc1.weight: \[128, 32\]"):
        load_at(layout, f"--load {directory} {flags} --ffn-hidden-size 64")


REFUSES = {
    "assume_ok_unexpected": (True, False),
    "log_unexpected": (False, False),
    "raise_unexpected": (True, False),
    "raise_all": (True, True),
    "return_all": (False, False),
}
"""--dist-ckpt-strictness -> whether names are refused that the model has alone, and that the checkpoint has alone."""


@pytest.mark.parametrize("strictness", REFUSES)
def test_which_side_may_have_more(checkpoint, strictness):
    """Each --dist-ckpt-strictness refuses a model of more or fewer layers than the checkpoint only as REFUSES says."""
    directory, _ = checkpoint
    flags = f"--load {directory} --lr-decay-iters 4 --dist-ckpt-strictness {strictness}"
    for layers, refused in zip((3, 1), REFUSES[strictness], strict=True):
        if refused:
            with pytest.raises(ValueError, match="does not fit, nothing was loaded"):
                load_at("one", f"{flags} --num-layers {layers}")
        else:
            load_at("one", f"{flags} --num-layers {layers}")


def test_states_that_this_optimizer_lacks_are_named(tmp_path):
    """A checkpoint with states of PmAdamW is refused by Adam, which would lose them; --dist-ckpt-strictness
    assume_ok_unexpected loads it."""
    train_at("one", f"{FOUR_STEPS} --optimizer PmAdamW --pma-interleave-step 1 --save {tmp_path} --train-iters 2")
    load = f"{FOUR_STEPS} --load {tmp_path}"
    with pytest.raises(ValueError, match=r"has the states .*pma.*, this optimizer does not; .*--no-load-optim"):
        load_at("one", load)
    load_at("one", f"{load} --dist-ckpt-strictness assume_ok_unexpected")


def test_a_float32_run_takes_the_float32_values_of_a_16_bit_one(tmp_path):
    """A float32 run loads main_param as its weights, not the rounded weights, which it takes with
    --no-load-optim only."""
    train_at("one", f"--bf16 --save {tmp_path}")
    whole, rounded = load_at("one", f"--load {tmp_path}"), load_at("one", f"--load {tmp_path} --no-load-optim")
    for name, values in whole.weights.items():
        np.testing.assert_array_equal(values, saved(tmp_path, f"main_param.{name}"), err_msg=name)
    assert any(not np.array_equal(whole.weights[name], rounded.weights[name]) for name in whole.weights)


def test_what_was_saved_without_an_optimizer(tmp_path):
    """--no-save-optim --no-save-rng: loading asks for --no-load-optim, with which the weights are loaded and the seed
    is the flags'."""
    before = train_at("one", f"--save {tmp_path} --no-save-optim --no-save-rng")
    with pytest.raises(ValueError, match=r"saved without its optimizer.*--no-load-optim"):
        load_at("one", f"--load {tmp_path}")
    after = load_at("one", f"--load {tmp_path} --no-load-optim --seed 5")
    np.testing.assert_equal(after.weights, before.weights)
    assert after.seed == 5 and Manifest.read(commit.find(tmp_path)).rng is None


def test_the_seed_of_dropout_masks_goes_on(checkpoint):
    """The checkpoint's seed counts, not --seed, unless --no-load-rng is given."""
    directory, before = checkpoint
    flags = f"--load {directory} --lr-decay-iters 4 --seed 5"
    assert load_at("one", flags).seed == before.seed
    assert load_at("one", f"{flags} --no-load-rng").seed == 5


def test_the_first_run_of_a_script_that_saves_where_it_loads(tmp_path):
    """--load of the --save folder while that is empty starts from the beginning, later it goes on; a --load folder that
    does not exist is an error."""
    flags = f"--save {tmp_path} --load {tmp_path} --lr-decay-iters 4"
    assert len(train_at("one", flags).losses) == 2
    assert len(train_at("one", f"{flags} --train-iters 3").losses) == 1
    with pytest.raises(ValueError, match="there is no such folder"):
        load_at("one", f"--load {tmp_path / 'elsewhere'}")


def test_saves_at_the_interval_keep_the_newest(tmp_path):
    """--save-interval 1 with --keep-checkpoint-max 2 over three iterations keeps two, each with both tensor ranks'
    files."""
    train_at("tp2", f"--save {tmp_path} --save-interval 1 --train-iters 3 --keep-checkpoint-max 2")
    assert sorted(path.name for path in tmp_path.glob("iter_*")) == ["iter_0000002", "iter_0000003"]
    files = sorted(path.name for path in (tmp_path / "iter_0000003").iterdir())
    assert files == ["manifest.json", "mp_rank_00_000.safetensors", "mp_rank_01_000.safetensors"]


def test_a_run_without_a_step_to_do_leaves_its_checkpoint_as_it_is(tmp_path):
    """A finished run started again with --no-load-optim writes nothing: its checkpoint would lose the optimizer's
    states."""
    train_at("one", f"--save {tmp_path}")
    before = (commit.find(tmp_path) / MANIFEST).read_text()
    again = train_at("one", f"--save {tmp_path} --load {tmp_path} --no-load-optim")
    assert again.losses == [] and (commit.find(tmp_path) / MANIFEST).read_text() == before


def test_resuming_from_an_earlier_iteration(tmp_path):
    """--ckpt-step 2 of a run of 3 steps, and one step more: step 3 again, to the bit."""
    whole = train_at("one", f"{FOUR_STEPS} --train-iters 3 --save-interval 1 --save {tmp_path}")
    again = train_at("one", f"{FOUR_STEPS} --train-iters 3 --load {tmp_path} --ckpt-step 2")
    assert again.losses == whole.losses[2:]


def test_new_data_start_at_their_beginning(tmp_path):
    """--new-dataset: the resumed run's step 3 sees the samples of step 1, but its iteration goes on. The learning rate
    is 0, so losses tell the samples."""
    flags = "--lr 0 --lr-decay-iters 9 --weight-decay 0"
    first = train_at("one", f"{flags} --save {tmp_path}")
    goes_on = train_at("one", f"{flags} --load {tmp_path} --train-iters 4 --override-opt_param-scheduler")
    anew = train_at("one", f"{flags} --load {tmp_path} --train-iters 4 --override-opt_param-scheduler --new-dataset")
    assert anew.losses == first.losses and not set(goes_on.losses) & set(first.losses)
    assert (anew.iteration, anew.consumed_samples) == (goes_on.iteration, goes_on.consumed_samples) == (4, 16)


@pytest.mark.parametrize("flag", ["--resume-training", "--exit-on-missing-checkpoint"])
def test_a_run_that_must_go_on_does_not_start_anew(tmp_path, flag):
    """An empty --load folder is refused with --resume-training or --exit-on-missing-checkpoint; without them it starts
    a run if --save names it too."""
    with pytest.raises(ValueError, match="no checkpoint was ever completed"):
        train_at("one", f"--load {tmp_path} --save {tmp_path} {flag}")
