"""Which loss scaler a run has: by flags, by DeepSpeed's JSON, by the earlier system's names."""

import json

import pytest

from mapping import init_configs_from_args, parse_args
from parallel_core.config import ConfigError
from parallel_core.loss_scale import (
    AdaptiveLossScaler,
    ConstantLossScaler,
    DeepSpeedLossScaler,
    DynamicLossScaler,
    LossScaler,
)
from pynative.training.loss_scale import AdaptiveLossScaleUpdateCell, DynamicLossScaleUpdateCell
from tests.support.engine import TINY


def scaler_of(flags: str) -> LossScaler | None:
    config = init_configs_from_args(parse_args(f"{TINY} {flags}".split(), world_size=1))
    return config.training_config.precision.make_loss_scaler()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("", None),
        ("--bf16", None),
        ("--bf16 --loss-scale 8", ConstantLossScaler(8.0)),
        ("--fp16 --loss-scale 8", ConstantLossScaler(8.0)),
        ("--fp16", DynamicLossScaler()),
        ("--fp16 --loss-scale 0", DynamicLossScaler()),
        (
            "--fp16 --initial-loss-scale 64 --loss-scale-window 5 --hysteresis 3 --min-loss-scale 4",
            DynamicLossScaler(scale=64.0, window=5, hysteresis=3, min_scale=4.0),
        ),
        ("--fp16 --adaptive-loss-scale", AdaptiveLossScaler(2.0**32, 2.0, 20)),
        (
            "--fp16 --adaptive-loss-scale --max-scale-window 500 --min-scale-window 50 --loss-scale-window 100",
            AdaptiveLossScaler(2.0**32, 2.0, 100, 500, 50),
        ),
        ("--fp16 --consecutive-hysteresis", DeepSpeedLossScaler(scale=2.0**32, consecutive_hysteresis=True)),
    ],
)
def test_flags(flags, expected):
    """A scale of 0 adapts, as in DeepSpeed; an adaptive window begins with the shortest."""
    assert scaler_of(flags) == expected and type(scaler_of(flags)) is type(expected)


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ({}, DeepSpeedLossScaler()),
        ({"loss_scale": 0, "initial_scale_power": 12}, DeepSpeedLossScaler(scale=4096.0)),
        ({"loss_scale": 128}, ConstantLossScaler(128.0)),
        (
            {"loss_scale_window": 7, "hysteresis": 1, "min_loss_scale": 2, "consecutive_hysteresis": True},
            DeepSpeedLossScaler(window=7, hysteresis=1, min_scale=2.0, consecutive_hysteresis=True),
        ),
    ],
)
def test_deepspeed(tmp_path, block, expected):
    """Its own state machine, from 2^16 unless it says otherwise."""
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({"fp16": {"enabled": True, **block}}))
    found = scaler_of(f"--fp16 --deepspeed-config {path}")
    assert found == expected and type(found) is type(expected)


def test_bounds_that_contradict_are_refused():
    with pytest.raises(ConfigError, match="--max-scale-window 20: must be above --min-scale-window 20"):
        scaler_of("--fp16 --adaptive-loss-scale --max-scale-window 20")


def test_a_window_is_whole_steps():
    """Half a step would be cut off without a word; what is no number at all is said to be none."""
    with pytest.raises(ConfigError, match=r"--loss-scale-window 2\.5: must be a whole number"):
        scaler_of("--fp16 --loss-scale-window 2.5")
    with pytest.raises(ConfigError, match="--loss-scale-window x: must be a number"):
        scaler_of("--fp16 --loss-scale-window x")


def test_the_earlier_systems_cells_by_their_documented_arguments():
    """The state machine of the same name; one that every overflow shrinks."""
    cell = AdaptiveLossScaleUpdateCell(1, 2, 20, 1000, 20)
    assert (cell.scale, cell.factor, cell.window, cell.kind) == (1, 2, 20, "adaptive")
    dynamic = DynamicLossScaleUpdateCell(2.0**12, 2, 2)
    for overflow in (True, True, False, False):
        dynamic.update(overflow)
    assert dynamic.scale == 2.0**11
