"""Real launch scripts that want nothing but what is implemented train, shrunk to a laptop, every switch kept."""

import json
import math

import pytest

from tests.support.assets import asset
from tests.support.distributed import run
from tests.support.public_scripts import train_script

SCRIPTS = json.loads(asset("megatron_flags/shrunk.json").read_text())


def test_twenty_are_drawn():
    assert len({script["id"] for script in SCRIPTS}) == 20


@pytest.mark.parametrize("script", SCRIPTS, ids=[script["id"] for script in SCRIPTS])
def test_a_script_in_16_bits_trains_two_steps(script, tmp_path):
    """All ranks report one loss, near that of a uniform guess. Each step changes the weights; the first ones of float16
    may overflow Megatron's initial loss scale instead, and then change nothing."""
    ranks = run(script["nproc"], train_script, script["argv"], tmp_path)
    for steps in ranks:
        assert len(steps) == 2 and [step[:2] for step in steps] == [step[:2] for step in ranks[0]]
        first, second = steps
        assert first.loss == pytest.approx(math.log(500), abs=0.3) and second.loss == pytest.approx(first.loss, abs=0.1)
        is_skipped = "--fp16" in script["argv"] and not math.isfinite(second.gradient_norm)
        assert (first.weights == second.weights) == is_skipped
        assert is_skipped or math.isfinite(second.gradient_norm)
