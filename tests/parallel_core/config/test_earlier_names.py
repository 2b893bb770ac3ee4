"""MindFormers' names of config fields and arguments: they have the values given by our flags."""

from operator import attrgetter

import pytest

from mapping import init_configs_from_args, parse_args
from tests.support.engine import TINY, config_of

EXPERTS = "--num-experts 4 --moe-expert-capacity-factor 2 --cold-token-percent 0.5"


@pytest.mark.parametrize(
    ("name", "flags", "value", "without"),
    [
        ("moe_config.enable_cold_hot_expert", f"{EXPERTS} --hot-expert-num 1", True, False),
        ("moe_config.expert_num", EXPERTS, 4, 1),
        ("moe_config.capacity_factor", EXPERTS, 2.0, None),
        ("moe_config.save_token_distribution", f"{EXPERTS} --save-token-distribution", True, False),
        ("parallel_config.model_parallel", "--tensor-model-parallel-size 2", 2, 1),
        ("parallel_config.expert_parallel", "--num-experts 4 --expert-model-parallel-size 2", 2, 1),
        ("model.model_config.hidden_size", "--hidden-size 64", 64, 32),
        ("model.model_config.ffn_hidden_size", "--ffn-hidden-size 64", 64, 128),
        (
            "callbacks",
            "--save x --save-interval 7",
            [{"type": "CheckpointMonitor", "save_checkpoint_steps": 7}],
            [],
        ),
        ("training_config.crc_check", "--no-resume-crc-check", False, True),
        ("training_config.profile_framework", "--profile-framework time", "time", "all"),
        ("training_config.profile_communication", "--profile-communication", True, False),
        ("training_config.profile_op_time", "--no-profile-op-time", False, True),
    ],
)
def test_a_name_has_the_value_that_was_given(name, flags, value, without):
    """An attribute of MindFormers' name has the flag's value, and without the flag its documented default."""
    assert attrgetter(name)(config_of(f"{TINY} {flags}", 2)) == value
    assert attrgetter(name)(config_of(TINY, 2)) == without


@pytest.mark.parametrize(
    ("name", "flags", "value", "changed"),
    [("bucket_size", "--ddp-bucket-size 7", 7, 9), ("profile_memory", "--profile-with-memory", True, False)],
)
def test_an_argument_has_both_names(name, flags, value, changed):
    """An argument can be read by its older name, and set by it: the config made of the arguments has the new value."""
    args = parse_args([*TINY.split(), *flags.split()], world_size=1)
    assert getattr(args, name) == value
    setattr(args, name, changed)
    assert attrgetter(f"training_config.{name}")(init_configs_from_args(args)) == changed


def test_an_argument_that_is_none_is_an_error():
    """A name that is no argument raises AttributeError with that name."""
    with pytest.raises(AttributeError, match="there is no argument nothing"):
        _ = parse_args(TINY.split(), world_size=1).nothing
