"""MindFormers' Trainer: its arguments start a `pretrain` run; those that cannot act are errors that name the page."""

import importlib
import re

import numpy as np
import pytest

from parallel_core.findings import ConfigError
from pynative.training import Trainer, TrainingArguments
from pynative.training.callbacks import Callback, MoEDropRateCallback, SummaryMonitor
from pynative.training.trainer import Samples, revised
from tests.support import warm
from tests.support.assets import ROOT
from tests.support.distributed import run
from tests.support.engine import TINY, config_of, job
from tests.support.layouts import Rows
from tests.support.pretraining import pretrain_tiny

PAGE = r'see "A run of a Trainer" in docs/migrating\.md'


def section() -> str:
    """The section "A run of a Trainer" of docs/migrating.md."""
    text = (ROOT / "docs/migrating.md").read_text(encoding="utf-8")
    return text.partition("### A run of a Trainer\n")[2].partition("\n## ")[0]


def test_the_page_runs_as_printed(tmp_path):
    """The page's script, with fewer samples, runs; each sample is read once in each epoch."""
    network, script = (re.search(rf"```{kind}\n(.*?)```", section(), re.DOTALL)[1] for kind in ("yaml", "python"))
    network = network.replace("loss_scale_value: 1,", "loss_scale_value: 4,")
    (tmp_path / "network.yaml").write_text(network + "training_config: {eval_iters: 0, log_interval: 1}\n")
    short = script.replace("range(512)", "range(8)").replace("warmup_steps=100", "warmup_steps=2")
    assert short.count("range(8)") == short.count("warmup_steps=2") == 1
    (tmp_path / "run.py").write_text(short)
    done = warm.run(["run.py"], tmp_path, {"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    steps = re.findall(r"Epoch: (\d+), Step: (\d+),.* Loss_scale: (\S+),", done.stdout)
    assert [int(step) for _, step, _ in steps] == [*range(1, 3 * 8 // 2 + 1)]
    assert [int(epoch) for epoch, _, _ in steps] == [0] * 3 + [1] * 4 + [2] * 4 + [3]
    assert {float(scale) for *_, scale in steps} == {4.0}, "what the wrapper's scaler begins with"
    assert "ignored: sink_mode: " in done.stdout and "3 x 8 samples / --global-batch-size 2" in done.stdout


class Losses(Callback):
    def __init__(self) -> None:
        self.found: list[float] = []

    def on_step_end(self, state):
        self.found.append(state.result.loss)


def by_trainer(backend, flags: str, **settings) -> list[float]:
    config, losses = config_of(f"{TINY} {flags}", backend.world_size), Losses()
    with job(backend, config):
        Trainer(TrainingArguments(**settings), all_config=config, train_dataset=Rows(), callbacks=[losses]).train()
    return losses.found


def by_flags(backend, flags: str) -> list[float]:
    losses = Losses()
    pretrain_tiny(backend, f"{TINY} {flags}", callbacks=[losses])
    return losses.found


def test_a_trainers_run_is_that_of_the_flags():
    """A Trainer's losses are those of the flags it stands for, to the bit on two replicas, derived settings
    included."""
    settings = {"max_steps": 5, "learning_rate": 2e-3, "warmup_steps": 2, "gradient_accumulation_steps": 2}
    losses, *_ = run(2, by_trainer, "", **settings, per_device_train_batch_size=1, weight_decay=0.2)
    wanted = "--micro-batch-size 1 --train-iters 5 --lr 2e-3 --lr-warmup-iters 2 --micro-batch-num 2 --weight-decay 0.2"
    assert len(losses) == 5 and losses == run(2, by_flags, wanted)[0]


def resumed(backend, folder: str) -> list[float]:
    config, losses = config_of(f"{TINY} --lr-decay-iters 4 --save {folder} --save-interval 2", 1), Losses()
    with job(backend, config):
        Trainer(all_config=config, train_dataset=Rows()).train()
    with job(backend, config):
        arguments = TrainingArguments(max_steps=4, output_dir=f"{folder}2")
        Trainer(arguments, all_config=config, train_dataset=Rows(), callbacks=[losses]).train(train_checkpoint=folder)
    return losses.found


def test_it_begins_with_a_checkpoint(tmp_path):
    """A Trainer given a checkpoint goes on as the uninterrupted run."""
    (found,) = run(1, resumed, str(tmp_path / "run"))
    assert found == run(1, by_flags, "--train-iters 4")[0][2:]


def test_settings_go_before_the_configuration():
    """TrainingArguments' settings replace the configuration's; those not given stay, and none change nothing."""
    config = config_of(f"{TINY} --lr-decay-style linear", 1)
    found = revised(config, TrainingArguments(num_train_epochs=2, clip_grad=0.5).values, samples=10)
    assert (found.training_config.training_iters, found.optimizer_config.lr_decay_iters) == (10, 10)
    assert (found.optimizer_config.clip_grad, found.optimizer_config.lr_decay_style) == (0.5, "linear")
    assert revised(config, {}, samples=10) == config


def test_a_changed_configuration_is_not_built_anew():
    """A configuration changed since it was built is an error, as building it again for the Trainer would lose the
    change."""
    config = config_of(TINY, 1)
    config.training_config.log_interval = 7
    with pytest.raises(ValueError, match="all_config was changed since it was built"):
        revised(config, {}, samples=10)


@pytest.mark.parametrize(
    "settings, rule",
    [
        ({"learning_rat": 1e-3}, rf"learning_rat=.*near are learning_rate.*{PAGE}"),
        ({"hidden_size": 8}, rf"hidden_size=.*{PAGE}"),
        ({"learning_rate": "1e-3"}, r"learning_rate='1e-3'\): must be of type float"),
    ],
)
def test_settings_that_are_none_are_refused(settings, rule):
    """TrainingArguments refuses misspelt settings, settings of a model and values of another type by name."""
    with pytest.raises(ValueError, match=rule):
        TrainingArguments(**settings)


def test_lengths_that_cannot_be_are_refused():
    """Epochs of less than an iteration and a warm-up longer than the run are ConfigErrors that name the flag."""
    with pytest.raises(ConfigError, match=r"--num_train_epochs 1: 1 x 1 samples .* is less than one iteration"):
        revised(config_of(TINY, 1), TrainingArguments(num_train_epochs=1).values, samples=1)
    with pytest.raises(ConfigError, match="--lr-warmup-iters 9"):
        revised(config_of(TINY, 1), TrainingArguments(warmup_steps=9).values, samples=4)


def test_what_a_trainer_cannot_take_is_named_at_once():
    """One ValueError names all arguments that a Trainer cannot take or lacks; a missing method names the page."""
    with pytest.raises(ValueError, match=PAGE) as caught:
        Trainer("run.yaml", task="translation", model_name="pangualpha_2_6b", wrapper=object(), pet_method="lora")
    named = [line.partition(":")[0] for line in str(caught.value).splitlines()[1:]]
    wanted = ["model_name", "wrapper", "pet_method", "task translation", "args", "all_config", "train_dataset"]
    assert named == wanted
    trainer = Trainer(all_config=config_of(TINY, 1), train_dataset=Rows())
    with pytest.raises(AttributeError, match=f"no evaluate: {PAGE}"):
        trainer.evaluate()


@pytest.mark.parametrize("name", ["AutoModel", "init_context", "ContextConfig", "MFTrainOneStepCell"])
def test_names_that_are_not_here_say_what_is(name):
    """Importing a MindFormers name that is not provided is an ImportError that refers to docs/migrating.md."""
    with pytest.raises(ImportError, match=PAGE):
        getattr(importlib.import_module("pynative.training"), name)


def test_callbacks_by_name(tmp_path):
    """Callbacks given to a Trainer by name or dictionary are built with their settings; unknown ones are errors."""
    entries = [
        {"type": "SummaryMonitor", "summary_dir": str(tmp_path), "collect_freq": 3},
        {"type": "MoEDropRateCallback", "expert_num": 4, "capacity_factor": 1.5, "num_layers": 2, "mtp_depth": 0},
        "ColdHotExpertMonitor",
    ]
    made = Trainer(all_config=config_of(TINY, 1), train_dataset=Rows(), callbacks=entries).callbacks
    assert isinstance(made[0], SummaryMonitor) and made[0].interval == 3
    assert isinstance(made[1], MoEDropRateCallback) and made[1].capacity_factor == 1.5
    for wrong in ({"type": "NoSuchCallback"}, "expert_callbacks", {}):
        with pytest.raises(ValueError, match=PAGE):
            Trainer(all_config=config_of(TINY, 1), train_dataset=Rows(), callbacks=[wrong])


IDS = np.arange(30, dtype=np.int64).reshape(6, 5)


def dataset(batch: int):
    from mindspore.dataset import NumpySlicesDataset

    rows = NumpySlicesDataset(IDS, column_names=["input_ids"], shuffle=False)
    return rows.batch(batch) if batch else rows


@pytest.mark.parametrize(
    "given",
    [lambda: IDS, lambda: [{"input_ids": row} for row in IDS], lambda: dataset(0), lambda: dataset(4)],
    ids=["arrays", "dicts", "mindspore", "batched"],
)
def test_data_of_any_form_are_samples(given):
    """Arrays, dictionaries and MindSpore's data sets, batched or not, become the same samples of a GPT."""
    samples = Samples(given())
    assert len(samples) == 6
    for row, sample in zip(IDS, (samples[i] for i in range(6)), strict=True):
        assert sample["tokens"].tolist() == row[:-1].tolist() and sample["labels"].tolist() == row[1:].tolist()
        assert sample["position_ids"].tolist() == [0, 1, 2, 3] and sample["loss_mask"].tolist() == [1] * 4
    assert Samples(Rows())[3].keys() == Rows()[3].keys()
