"""A DeepSpeed configuration beside flags: its values act, `auto` takes the flags', contradictions are errors."""

from __future__ import annotations

import functools
import json
from operator import attrgetter

import pytest

from mapping.explain import outcomes
from mapping.flags import IGNORED
from mapping.merge import Reading
from mapping.readers.deepspeed import KEYS
from mapping.reading import read
from tests.support.mapping.lines import line


@pytest.fixture
def reading_with(tmp_path):
    """A function from the content of a DeepSpeed file and a change of the good command line to the reading."""

    def read_with(content: dict, change: str = "~global-batch-size", world_size: int = 2) -> Reading:
        path = tmp_path / "deepspeed.json"
        path.write_text(json.dumps(content))
        return read([*line(change), "--deepspeed-config", str(path)], world_size=world_size)

    return read_with


def _offload(device: str, **keys) -> dict:
    """DeepSpeed's content for ZeRO 2 with the optimizer offloaded to `device`."""
    return {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": device, **keys}}}


@pytest.mark.parametrize(
    "content, section, field, value",
    [
        ({"train_batch_size": 16}, "dataset_config", "micro_batch_num", 4),
        ({"gradient_clipping": 0.5}, "optimizer_config", "clip_grad", 0.5),
        ({"zero_optimization": {"stage": 0}}, "training_config", "use_distributed_optimizer", False),
        ({"zero_optimization": {"stage": 1}}, "training_config", "use_distributed_optimizer", True),
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}}, "training_config", "zero_stage", 3),
        (
            {"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}},
            "training_config",
            "cpu_offload_params",
            True,
        ),
        (_offload("cpu", ratio=0.25), "training_config", "cpu_offload_optimizer", True),
        (_offload("cpu", ratio=0.25), "training_config", "optimizer_offload_fraction", 0.25),
        (_offload("cpu", nvme_path="/nvme"), "training_config", "nvme_path", None),
        (_offload("nvme", nvme_path="/nvme"), "training_config", "nvme_path", "/nvme"),
        (_offload("none", nvme_path="/nvme", ratio=0.5), "training_config", "nvme_path", None),
        ({"fp16": {"enabled": True, "loss_scale": 0}}, "training_config", "loss_scale", None),
        ({"fp16": {"enabled": True, "loss_scale": 128}}, "training_config", "loss_scale", 128.0),
        ({"fp16": {"enabled": True, "initial_scale_power": 16}}, "training_config", "loss_scale_value", 65536.0),
        ({"fp16": {"enabled": True, "hysteresis": 4}}, "training_config", "loss_scale_hysteresis", 4),
        ({"bf16": {"enabled": True}}, "model_config", "compute_dtype", "bfloat16"),
        ({"communication_data_type": "fp32"}, "training_config", "accumulate_allreduce_grads_in_fp32", True),
        ({"communication_data_type": "fp16"}, "training_config", "communication_data_type", "fp16"),
        ({"optimizer": {"type": "AdamW", "params": {"betas": [0.8, 0.9]}}}, "optimizer_config", "betas", (0.8, 0.9)),
        ({"optimizer": {"type": "SGD", "params": {"momentum": 0.5}}}, "optimizer_config", "sgd_momentum", 0.5),
        ({"optimizer": {"type": "Muon"}}, "optimizer_config", "optimizer_type", "muon"),
        ({"optimizer": {"type": "Muon"}}, "optimizer_config", "muon_scale_mode", "shape_scaling"),
        ({"prescale_gradients": True}, "training_config", "average_in_collective", False),
        ({"prescale_gradients": False}, "training_config", "average_in_collective", True),
        (
            {"scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 0}}},
            "optimizer_config",
            "lr_warmup_iters",
            2,
        ),
        (
            {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 3, "warmup_type": "linear"}}},
            "optimizer_config",
            "lr_decay_style",
            "constant",
        ),
    ],
)
def test_a_key_becomes_its_field(reading_with, content, section, field, value):
    """Each key of DeepSpeed's fills its config field."""
    found = reading_with(content)
    assert found.errors == []
    assert getattr(getattr(found.config, section), field) == value


def test_auto_is_what_the_flags_say_and_is_logged(reading_with):
    """`auto` takes the flag's value, with a note that names key, flag and value."""
    found = reading_with(
        {
            "train_micro_batch_size_per_gpu": "auto",
            "train_batch_size": "auto",
            "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
        }
    )
    assert found.errors == []
    assert found.notes == [
        "train_micro_batch_size_per_gpu auto: --micro-batch-size 2",
        "train_batch_size auto: --global-batch-size 4",
        "optimizer.params.lr auto: --lr 0.001",
    ]


def test_autos_of_one_field_are_its_parts(reading_with):
    """`auto` for betas has a note for each of the two flags that fill the field."""
    found = reading_with({"optimizer": {"type": "AdamW", "params": {"betas": "auto"}}}, "--adam-beta1 0.8")
    assert found.notes == [f"optimizer.params.betas auto: --adam-{name}" for name in ("beta1 0.8", "beta2 0.999")]


@pytest.mark.parametrize(
    ("flags", "clips"),
    [
        ("--deepspeed {path}", 0.3),
        ("--deepspeed --deepspeed_config {path}", 0.3),
        ("--deepspeed {path} --deepspeed-config {path}", 0.3),
        ("--deepspeed", None),
        ("--deepspeed {path} other.json", None),
        ("--deepspeed other.json --deepspeed-config {path}", None),
        ("--deepspeed {path}x", None),
    ],
)
def test_a_file_is_named_as_a_trainer_does(tmp_path, flags, clips):
    """The file is given by --deepspeed PATH, or by --deepspeed as a switch beside --deepspeed_config; two files, none,
    or a missing one are an error."""
    path = tmp_path / "deepspeed.json"
    path.write_text(json.dumps({"gradient_clipping": 0.3}))
    found = read([*line(), *flags.format(path=path).split()])
    if clips is None:
        (error,) = found.errors
        assert error.startswith("--deepspeed") and ("one configuration file" in error or "no such file" in error)
    else:
        assert found.errors == [] and found.config.optimizer_config.clip_grad == clips


@pytest.mark.parametrize(
    ("keys", "flags", "others", "field"),
    [
        (
            ("gradient_accumulation_steps",),
            "--micro-batch-num 2",
            "--micro-batch-num 4",
            "dataset_config.micro_batch_num",
        ),
        (("gradient_clipping",), "--clip-grad 0.5", "--clip-grad 2", "optimizer_config.clip_grad"),
        (("train_batch_size",), "--global-batch-size 8", "--global-batch-size 16", "dataset_config.micro_batch_num"),
        (
            ("train_micro_batch_size_per_gpu",),
            "--micro-batch-size 2",
            "--micro-batch-size 1",
            "dataset_config.batch_size",
        ),
        (("fp16", "enabled"), "--fp16", "", "training_config.precision.fp16"),
        (("bf16", "enabled"), "--bf16", "", "training_config.precision.bf16"),
    ],
)
def test_each_auto_follows_its_flag(reading_with, keys, flags, others, field):
    """Another value of the flag gives another config value and another note, for each key that may be `auto`."""
    content = functools.reduce(lambda inner, key: {key: inner}, reversed(keys), "auto")
    one, other = (reading_with(content, f"~global-batch-size {given}") for given in (flags, others))
    assert one.errors == other.errors == []
    assert attrgetter(field)(one.config) != attrgetter(field)(other.config)
    assert one.notes != other.notes and one.notes[0].startswith(f"{'.'.join(keys)} auto: ")


def test_auto_that_nothing_resolves_is_an_error(reading_with):
    """`auto` for a value that no flag gives is an error with the flag."""
    found = reading_with({"train_micro_batch_size_per_gpu": "auto"}, "~micro-batch-size")
    (error,) = found.errors
    assert "--micro-batch-size" in error


@pytest.mark.parametrize(
    "content, change, values",
    [
        ({"train_micro_batch_size_per_gpu": 4}, "", ("4", "--micro-batch-size 2")),
        ({"bf16": {"enabled": False}}, "--bf16", ("False", "--bf16 True")),
        (
            {"train_batch_size": 12, "gradient_accumulation_steps": 2},
            "~global-batch-size",
            ("train_batch_size 12", "gradient_accumulation_steps 2"),
        ),
    ],
)
def test_a_contradiction_names_both_values(reading_with, content, change, values):
    """A value that contradicts a flag or another key is one error with both."""
    found = reading_with(content, change)
    (error,) = found.errors
    assert all(value in error for value in values)


@pytest.mark.parametrize(
    "content, blamed",
    [
        ({"train_batchsize": 4}, "train_batch_size"),
        ({"zero_optimization": {"stage": 4}}, "zero_optimization.stage"),
        ({"optimizer": {"type": "Lamb"}}, "optimizer.type"),
        ({"zero_optimization": {"offload_param": {"device": "nvme"}}}, "zero_optimization.offload_param.device"),
        (_offload("nvme"), "zero_optimization.offload_optimizer.nvme_path"),
        ({"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}, "--zero-stage 3"),
        ({"scheduler": {"type": "WarmupLR", "params": {"warmup_type": "square"}}}, "scheduler.params.warmup_type"),
        ({"scheduler": ["WarmupLR"]}, "scheduler"),
        ({"sparse_gradients": True}, "sparse_gradients"),
        ({"optimizer": {"type": "SGD", "params": {"nesterov": True}}}, "optimizer.params.nesterov"),
        ({"optimizer": {"type": "AdamW", "params": {"betas": [0.9]}}}, "optimizer.params.betas"),
        ({"optimizer": {"type": "AdamW", "params": {"betas": {"a": 1}}}}, "optimizer.params.betas"),
        ({"fp16": {"enabled": True, "initial_scale_power": "x"}}, "fp16.initial_scale_power"),
        ({"fp16": True}, "fp16.enabled"),
        ([1, 2], "must hold an object"),
    ],
)
def test_unknown_keys_and_values_are_errors(reading_with, content, blamed):
    """An unknown key or a value that is not available is one error with the key (the nearest known one for a misspelt
    key)."""
    (error,) = reading_with(content).errors
    assert blamed in error


def test_a_file_that_is_no_json_is_an_error(tmp_path):
    """A DeepSpeed file that is no JSON is one error with the flag."""
    (tmp_path / "x.json").write_text("{")
    found = read([*line(), "--deepspeed-config", str(tmp_path / "x.json")], world_size=1)
    (error,) = found.errors
    assert "--deepspeed-config" in error


AS_PRINTED = """
"scheduler": {
      "type": "WarmupLR",
      "params": {
          "warmup_min_lr": 0,      //auto
          "warmup_max_lr": 0.001,  //auto
          "warmup_num_steps": 1000 //auto
      }
  },
"fp16": {
    "enabled": auto,   //true
    "hysteresis": 2,
},
"""


def test_a_block_as_printed_is_read(tmp_path):
    """A block as guides print it, without outer braces and with comments and bare `auto`, is read; its WarmupLR is
    logarithmic, and may be longer than the training."""
    (tmp_path / "x.json").write_text(AS_PRINTED)
    found = read([*line(), "--deepspeed-config", str(tmp_path / "x.json")], world_size=1)
    schedule = found.config.optimizer_config
    assert found.errors == [] and "fp16.enabled auto: --fp16 False" in found.notes
    assert (schedule.lr_warmup_style, schedule.lr_warmup_iters, schedule.lr_decay_style) == ("log", 1000, "constant")


def test_a_schedule_without_its_keys_has_deepspeeds_defaults(reading_with):
    """WarmupLR without parameters warms up logarithmically over 1000 iterations, one update late, as in DeepSpeed."""
    schedule = reading_with({"scheduler": {"type": "WarmupLR"}}).config.optimizer_config
    assert (schedule.lr_warmup_style, schedule.lr_warmup_iters, schedule.lr_schedule_delay) == ("log", 1000, 1)


@pytest.mark.parametrize(
    "content, change, field, value",
    [
        ({}, "", "clip_grad", 0.0),
        ({}, "--clip-grad 0.5", "clip_grad", 0.5),
        ({"gradient_clipping": "auto"}, "", "clip_grad", 1.0),
        ({}, "", "weight_decay", 0.01),
        ({"optimizer": {"type": "AdamW"}}, "", "weight_decay", 0.0),
        ({"optimizer": {"type": "AdamW"}}, "--weight-decay 0.1", "weight_decay", 0.1),
        ({"optimizer": {"type": "AdamW", "params": {"weight_decay": 0.2}}}, "", "weight_decay", 0.2),
        ({"optimizer": {"type": "SGD"}}, "", "sgd_momentum", 0.0),
        ({"optimizer": {"type": "Muon"}}, "--muon-momentum 0.8", "muon_momentum", 0.8),
        ({"optimizer": {"type": "Muon"}}, "", "betas", (0.9, 0.95)),
    ],
)
def test_what_deepspeed_takes_counts_where_nothing_else_says_it(reading_with, content, change, field, value):
    """DeepSpeed's own defaults (no clipping, weight decay 0.01, ...) count beside its file where neither flag nor file
    gives a value."""
    found = reading_with(content, f"~global-batch-size {change}")
    assert found.errors == [] and getattr(found.config.optimizer_config, field) == value


def test_the_schedules_learning_rate_counts(reading_with):
    """warmup_max_lr of the scheduler is the learning rate, though the optimizer gives another."""
    optimizer = {"type": "AdamW", "params": {"lr": 0.011}}
    scheduler = {"type": "WarmupLR", "params": {"warmup_max_lr": 0.001}}
    found = reading_with({"scheduler": scheduler, "optimizer": optimizer})
    assert found.errors == [] and found.config.optimizer_config.learning_rate == 0.001


def test_a_key_that_is_not_read_is_said(reading_with, capsys):
    """A key that its device does not use, such as nvme_path beside the CPU in DeepSpeed's templates, has a line with
    the reason."""
    reading_with(_offload("cpu", nvme_path="/nvme", pin_memory=True)).print_notes()
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "offload_optimizer.nvme_path: only nvme as" in line]
    assert [line for line in lines if "offload_optimizer.pin_memory: only speed changes" in line]


@pytest.mark.parametrize(
    "key", sorted(key for key, meaning in KEYS.items() if meaning.__qualname__.startswith("nothing."))
)
def test_a_key_that_does_nothing_is_ignored_with_a_reason(reading_with, key):
    """Each key without effect is ignored with a reason in the outcomes, whatever its value."""
    content: dict = True
    for name in reversed(key.split(".")):
        content = {name: content}
    found = reading_with(content)
    (outcome,) = [outcome for outcome in outcomes(found) if outcome.flag == key]
    assert found.errors == [] and outcome.status == IGNORED and outcome.reason


def test_a_file_and_the_other_file_must_agree(tmp_path):
    """A DeepSpeed value that contradicts --yaml-cfg is an error, whereas a flag replaces the YAML's value."""
    (tmp_path / "x.yaml").write_text("training_config: {bf16: true}")
    (tmp_path / "x.json").write_text(json.dumps({"bf16": {"enabled": False}}))
    files = ["--yaml-cfg", str(tmp_path / "x.yaml"), "--deepspeed-config", str(tmp_path / "x.json")]
    (error,) = read([*line(), *files], world_size=1).errors
    assert error.startswith("bf16.enabled False: contradicts training_config.bf16 True")
