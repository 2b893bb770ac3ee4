"""Flags of the loss scale beside --bf16, --fp16 or neither: which act."""

import json

import pytest

from mapping.explain import outcomes
from mapping.flags import IGNORED, MAPPED
from mapping.reading import read
from tests.support.mapping.lines import line, reading

SCALE = "--initial-loss-scale 65536 --hysteresis 4 --min-loss-scale 2"


def statuses(flags: str) -> dict[str, tuple[str, str]]:
    """Flag -> (status, reason) of a command line without errors."""
    found = reading(flags)
    assert found.errors == []
    return {outcome.flag: (outcome.status, outcome.reason) for outcome in outcomes(found)}


def test_beside_bf16_an_adapting_scale_does_nothing_and_that_is_said(capsys):
    """Flags of a dynamic loss scale beside --bf16 are ignored with a line, as Megatron ignores them."""
    found = statuses(f"{SCALE} --bf16")
    assert {found[flag][0] for flag in SCALE.split()[::2]} == {IGNORED}
    assert "bfloat16" in found["--hysteresis"][1]
    reading(f"{SCALE} --bf16").print_notes()
    printed = capsys.readouterr().out
    assert all(f"ignored: {flag}: no effect: bfloat16" in printed for flag in SCALE.split()[::2])


@pytest.mark.parametrize("kind", ["--bf16", "--fp16"])
def test_a_fixed_scale_acts_beside_either_type_and_an_adapting_one_then_does_not(kind):
    """--loss-scale acts beside --bf16 and --fp16, and flags of a dynamic scale beside it are ignored."""
    found = statuses(f"{SCALE} --loss-scale 128 {kind}")
    assert found["--loss-scale"] == (MAPPED, "") and found["--hysteresis"][0] == IGNORED


def test_an_adapting_scale_acts_beside_fp16():
    """Flags of a dynamic loss scale are mapped beside --fp16."""
    found = statuses(f"{SCALE} --fp16")
    assert {found[flag] for flag in SCALE.split()[::2]} == {(MAPPED, "")}


def test_without_a_type_each_flag_is_refused():
    """Each flag of the loss scale without --fp16 or --bf16 is an error with the fix."""
    assert [error.split()[0] for error in reading(SCALE).errors] == SCALE.split()[::2]
    assert all("needs --fp16 or --bf16; add one" in error for error in reading(SCALE).errors)


def test_a_file_may_keep_what_it_switches_off(tmp_path):
    """Keys of DeepSpeed's fp16 block with `enabled: false` are ignored with a reason."""
    (tmp_path / "x.json").write_text(json.dumps({"fp16": {"enabled": False, "loss_scale": 128, "hysteresis": 4}}))
    found = read([*line(), "--deepspeed-config", str(tmp_path / "x.json")], world_size=1)
    said = {outcome.flag: (outcome.status, outcome.reason) for outcome in outcomes(found)}
    assert found.errors == []
    assert (
        said["fp16.loss_scale"] == said["fp16.hysteresis"] == (IGNORED, "no effect: float32 gradients are not scaled")
    )
