"""Pairs of `load_checkpoint` and `resume_training`, by every name that they have in flags and files."""

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
"""(load_checkpoint, resume_training); None is not given, or an empty value in a file."""

NAMES = ("load_checkpoint", "resume_training")
LAYOUTS = {
    "sections": lambda pair: sections(training_config=dict(zip(NAMES, pair, strict=True))),
    "nested": lambda pair: nested() | {"train_config": {"ms_training_config": dict(zip(NAMES, pair, strict=True))}},
    "nested beside": lambda pair: nested() | {"training_config": dict(zip(NAMES, pair, strict=True))},
    "Megatron's": lambda pair: MEGATRON | dict(zip(("load", "resume_training"), pair, strict=True)),
}


def flags_of(pair: tuple[str | None, bool | None]) -> list[str]:
    """The flags --load and --[no-]resume-training of a pair."""
    load, resume = pair
    says = {None: [], True: ["--resume-training"], False: ["--no-resume-training"]}
    return [*(["--load", load] if load else []), *says[resume]]


def check(pair: tuple[str | None, bool | None], reading: Reading) -> None:
    """Check that config and arguments have the pair, that only an explicit false begins anew, and that resuming without
    a checkpoint is one error."""
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
    """Each pair, in each YAML layout, gives that config."""
    (tmp_path / "x.yaml").write_text(yaml.safe_dump(content(pair)))
    check(pair, read(["--yaml-cfg", str(tmp_path / "x.yaml")], world_size=1))


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("beside_deepspeed", [False, True])
def test_flags_say_each_pair(pair, beside_deepspeed, tmp_path):
    """Each pair given by flags, with and without a DeepSpeed file, gives that config."""
    (tmp_path / "x.json").write_text(json.dumps({"zero_optimization": {"stage": 1}}))
    more = ["--deepspeed-config", str(tmp_path / "x.json")] if beside_deepspeed else []
    check(pair, read([*line(), *flags_of(pair), *more], world_size=1))


@pytest.mark.parametrize("content", LAYOUTS.values(), ids=LAYOUTS)
def test_a_flag_wins_over_a_file(content, tmp_path):
    """--no-resume-training wins over a file's true."""
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
    """HuggingFace's --model_name_or_path loads weights to begin with, --resume_from_checkpoint goes on with a run;
    given both, the latter counts."""
    reading = read([*line(), *flags.split()], world_size=1)
    checkpoint = reading.config.training_config.checkpoint
    assert reading.errors == [] and (checkpoint.load_checkpoint, checkpoint.resume_training) == pair
    (idle,) = [entry for entry in reading.given if entry.value == "y"] or [None]
    assert idle is None or "--resume_from_checkpoint says what is loaded" in idle.reason


@pytest.mark.parametrize("flags", ["--load x --resume_from_checkpoint y", "--load x --model_name_or_path y"])
def test_one_name_is_enough(flags):
    """--load beside another name with another path is an error."""
    (error,) = read([*line(), *flags.split()], world_size=1).errors
    assert error.startswith("--load x: contradicts")


def test_an_empty_name_loads_nothing():
    """An empty load_checkpoint is as none: accepted without resuming, an error with resume_training true."""
    assert init_configs_from_dict(sections(training_config={"load_checkpoint": "", "resume_training": False}))
    with pytest.raises(ConfigError, match=r"training_config\.resume_training: needs training_config\.load_checkpoint"):
        init_configs_from_dict(sections(training_config={"load_checkpoint": "", "resume_training": True}))
