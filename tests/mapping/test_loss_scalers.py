"""The loss scaler of a run, by flags, by DeepSpeed's JSON, and by MindFormers' cells."""

import json

import pytest

from mapping import init_configs_from_args, init_configs_from_dict, parse_args
from parallel_core.config import ConfigError
from parallel_core.numerics.loss_scale import (
    AdaptiveLossScaler,
    ConstantLossScaler,
    DeepSpeedLossScaler,
    DynamicLossScaler,
    LossScaler,
)
from pynative.training.loss_scale import (
    AdaptiveLossScaleUpdateCell,
    DynamicLossScaleUpdateCell,
    FixedLossScaleUpdateCell,
)
from tests.support.engine import TINY


def scaler_of(flags: str) -> LossScaler | None:
    """The loss scaler of TINY's command line with these flags; None without one."""
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
    """Flags give the loss scaler: none, constant, dynamic or adaptive; --loss-scale 0 is dynamic, as in DeepSpeed, and
    an adaptive window begins with the shortest."""
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
    """DeepSpeed's fp16 block gives its own scaler, from 2^16 unless it says otherwise, or a constant one."""
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({"fp16": {"enabled": True, **block}}))
    found = scaler_of(f"--fp16 --deepspeed-config {path}")
    assert found == expected and type(found) is type(expected)


def test_bounds_that_contradict_are_refused():
    """A longest adaptive window that is not above the shortest is an error."""
    with pytest.raises(ConfigError, match="--max-scale-window 20: must be above --min-scale-window 20"):
        scaler_of("--fp16 --adaptive-loss-scale --max-scale-window 20")


def test_a_window_is_whole_steps():
    """--loss-scale-window must be a whole number."""
    with pytest.raises(ConfigError, match=r"--loss-scale-window 2\.5: must be a whole number"):
        scaler_of("--fp16 --loss-scale-window 2.5")
    with pytest.raises(ConfigError, match="--loss-scale-window x: must be a number"):
        scaler_of("--fp16 --loss-scale-window x")


@pytest.mark.parametrize("scale", ["1e39", "1e300", "1e-50"])
@pytest.mark.parametrize("flag", ["--loss-scale", "--initial-loss-scale", "--min-loss-scale"])
def test_a_scale_is_a_number_of_float32(flag, scale):
    """A loss scale beyond float32's range is refused: it would be infinite or zero when gradients are multiplied."""
    with pytest.raises(ConfigError, match=f"{flag} {scale.replace('e', 'e.?')}: must be between"):
        scaler_of(f"--fp16 {flag} {scale}")


def test_a_wrong_value_hides_no_other_mistake():
    """Seven mistakes in flags of the loss scale are all reported at once."""
    flags = "--fp16 --bf16 --adaptive-loss-scale --initial-loss-scale -1 --loss-scale-window 2.5 --max-scale-window 20"
    with pytest.raises(ConfigError) as caught:
        scaler_of(f"{flags} --consecutive-hysteresis --hysteresis 0 --loss-scale 1e39")
    flagged = [finding.flag for finding in caught.value.findings]
    assert sorted(flagged) == sorted(
        [
            *("--fp16", "--initial-loss-scale", "--loss-scale-window", "--max-scale-window"),
            *("--consecutive-hysteresis", "--hysteresis", "--loss-scale"),
        ]
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("initial_scale_power", value) for value in (5000, 1e300, 128, True, "x")),
        *(("hysteresis", value) for value in ("x", "", None, True)),
        *((key, value) for key in ("loss_scale", "loss_scale_window", "min_loss_scale") for value in (10**400, True)),
    ],
    ids=lambda value: str(value)[:8],
)
def test_deepspeeds_block_holds_numbers_of_float32(tmp_path, key, value):
    """A value in DeepSpeed's fp16 block that is no number or beyond float32 is an error with the key."""
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({"fp16": {"enabled": True, key: value}}))
    with pytest.raises(ConfigError, match=f"^fp16.{key}"):
        scaler_of(f"--fp16 --deepspeed-config {path}")


def test_deepspeeds_block_and_another_scaler(tmp_path):
    """DeepSpeed's scaler beside --adaptive-loss-scale is an error with the key that asks for DeepSpeed's."""
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({"fp16": {"enabled": True, "initial_scale_power": 12}}))
    with pytest.raises(ConfigError, match=r"^fp16\.initial_scale_power deepspeed: contradicts --adaptive-loss-scale"):
        scaler_of(f"--fp16 --adaptive-loss-scale --deepspeed-config {path}")


def test_a_files_constant_scale_does_nothing_in_float32(capsys):
    """A constant loss scale in a file of a float32 run is ignored with a line, since it would switch off the check of
    non-finite gradients; with bf16 it acts."""
    sections = {"model_config": {"vocab_size": 64, "num_layers": 1, "hidden_size": 8, "num_attention_heads": 2}}
    sections["model_config"]["seq_length"] = 8
    for types, expected in (({}, None), ({"bf16": True}, ConstantLossScaler(8))):
        config = init_configs_from_dict(sections | {"training_config": {"loss_scale": 8, **types}}, world_size=1)
        assert config.training_config.precision.make_loss_scaler() == expected
    assert capsys.readouterr().out.count("loss_scale: no effect: float32 gradients are not scaled") == 1


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (
            lambda: AdaptiveLossScaleUpdateCell(0, 1, 0.5, 10, 20),
            ["loss_scale_value 0", "scale_factor 1", "scale_window 0.5", "max_scale_window 10"],
        ),
        (lambda: DynamicLossScaleUpdateCell(0.5, float("nan"), 0), ["scale_factor nan", "scale_window 0", "0.5: must"]),
        (lambda: FixedLossScaleUpdateCell(1e39), ["loss_scale_value 1e+39: must be between"]),
    ],
)
def test_the_earlier_systems_cells_refuse_all_that_is_wrong(make, found):
    """MindFormers' loss-scale cells report all wrong arguments at once, by their own names."""
    with pytest.raises(ConfigError) as caught:
        make()
    assert len(caught.value.errors) == len(found) and "--" not in str(caught.value)
    assert all(part in str(caught.value) for part in found)


def test_the_earlier_systems_cells_by_their_documented_arguments():
    """AdaptiveLossScaleUpdateCell is the adaptive scaler; DynamicLossScaleUpdateCell halves its scale with each
    overflow and doubles it after a window."""
    cell = AdaptiveLossScaleUpdateCell(1, 2, 20, 1000, 20)
    assert (cell.scale, cell.factor, cell.window, cell.kind) == (1, 2, 20, "adaptive")
    dynamic = DynamicLossScaleUpdateCell(2.0**12, 2, 2)
    for overflow in (True, True, False, False):
        dynamic.update(overflow)
    assert dynamic.scale == 2.0**11
