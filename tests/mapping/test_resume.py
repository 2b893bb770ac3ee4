"""The four pairs of `load_checkpoint` and `resume_training`, by every name that they have."""

from __future__ import annotations

import json

import pytest
import yaml

from mapping import ConfigError, init_configs_from_dict
from mapping.merge import Reading
from mapping.reading import read
from tests.support.mapping.lines import line
from tests.support.mapping.yaml_files import MEGATRON, nested, sections

PAIRS = [("x", None), ("x", True), ("x", False), (None, None), (None, False), (None, True)]
"""Not given is what a file's empty value says, too."""

NAMES = ("load_checkpoint", "resume_training")
LAYOUTS = {
    "sections": lambda pair: sections(training_config=dict(zip(NAMES, pair, strict=True))),
    "nested": lambda pair: nested() | {"train_config": {"ms_training_config": dict(zip(NAMES, pair, strict=True))}},
    "nested beside": lambda pair: nested() | {"training_config": dict(zip(NAMES, pair, strict=True))},
    "Megatron's": lambda pair: MEGATRON | dict(zip(("load", "resume_training"), pair, strict=True)),
}


def flags_of(pair: tuple[str | None, bool | None]) -> list[str]:
    load, resume = pair
    says = {None: [], True: ["--resume-training"], False: ["--no-resume-training"]}
    return [*(["--load", load] if load else []), *says[resume]]


def check(pair: tuple[str | None, bool | None], reading: Reading) -> None:
    checkpoint = reading.config.training_config.checkpoint
    if pair == (None, True):
        (error,) = reading.errors
        assert "resume_training" in error or "--resume-training" in error
    else:
        assert reading.errors == [] and (checkpoint.load_checkpoint, checkpoint.resume_training) == pair
        assert checkpoint.begins_anew == (pair[1] is False)
        assert (reading.args.load, reading.args.resume_training) == pair


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("content", LAYOUTS.values(), ids=LAYOUTS)
def test_a_file_says_each_pair(content, pair, tmp_path):
    (tmp_path / "x.yaml").write_text(yaml.safe_dump(content(pair)))
    check(pair, read(["--yaml-cfg", str(tmp_path / "x.yaml")], world_size=1))


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("beside_deepspeed", [False, True])
def test_flags_say_each_pair(pair, beside_deepspeed, tmp_path):
    (tmp_path / "x.json").write_text(json.dumps({"zero_optimization": {"stage": 1}}))
    more = ["--deepspeed-config", str(tmp_path / "x.json")] if beside_deepspeed else []
    check(pair, read([*line(), *flags_of(pair), *more], world_size=1))


@pytest.mark.parametrize("content", LAYOUTS.values(), ids=LAYOUTS)
def test_a_flag_wins_over_a_file(content, tmp_path):
    (tmp_path / "x.yaml").write_text(yaml.safe_dump(content(("x", True))))
    check(("x", False), read(["--yaml-cfg", str(tmp_path / "x.yaml"), "--no-resume-training"], world_size=1))


@pytest.mark.parametrize(
    "flags, pair",
    [
        ("--model_name_or_path x", ("x", False)),
        ("--resume_from_checkpoint x", ("x", True)),
        ("--model_name_or_path y --resume_from_checkpoint x", ("x", True)),
        ("--resume_from_checkpoint x --model_name_or_path y", ("x", True)),
        ("--model_name_or_path x --resume-training", ("x", True)),
    ],
)
def test_the_names_of_guides_to_deepspeed_say_each_pair(flags, pair):
    """Those of HuggingFace's Trainer, which has one for weights to begin with and one for the run that goes on."""
    reading = read([*line(), *flags.split()], world_size=1)
    checkpoint = reading.config.training_config.checkpoint
    assert reading.errors == [] and (checkpoint.load_checkpoint, checkpoint.resume_training) == pair
    (idle,) = [entry for entry in reading.given if entry.value == "y"] or [None]
    assert idle is None or "--resume_from_checkpoint says what is loaded" in idle.reason


@pytest.mark.parametrize("flags", ["--load x --resume_from_checkpoint y", "--load x --model_name_or_path y"])
def test_one_name_is_enough(flags):
    (error,) = read([*line(), *flags.split()], world_size=1).errors
    assert error.startswith("--load x: contradicts")


def test_an_empty_name_loads_nothing():
    assert init_configs_from_dict(sections(training_config={"load_checkpoint": "", "resume_training": False}))
    with pytest.raises(ConfigError, match=r"training_config\.resume_training: needs training_config\.load_checkpoint"):
        init_configs_from_dict(sections(training_config={"load_checkpoint": "", "resume_training": True}))
