"""Recorded public launch scripts: the share that starts, by slice (`acceptance.py` prints shares and reasons)."""

from __future__ import annotations

from argparse import Namespace

import pytest

from mapping import init_configs_from_args
from mapping.reading import read
from parallel_core.config.base import Unknown
from tests.support.assets import recorded
from tests.support.mapping.acceptance import SLICES, stops_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def scripts():
    """The recorded public launch scripts."""
    return recorded("megatron_flags/scripts.json.xz")["scripts"]


@pytest.fixture(scope="module")
def starting(scripts):
    """The ids of the scripts that no error stops."""
    return {script["id"] for script in scripts if not stops_of(script)}


@pytest.mark.parametrize(
    "name, share",
    [
        ("examples/mindspore", 1.0),
        ("dense pretraining", 0.99),
        ("dense", 0.98),
        ("fine-tuning", 0.96),
        ("all", 0.97),
        ("mixture of experts", 0.95),
        ("latent attention", 0.97),
    ],
)
def test_the_share_of_scripts_that_start(scripts, starting, name, share):
    """The share of a slice's scripts that start is at least `share`."""
    chosen = [script["id"] for script in scripts if SLICES[name](script)]
    assert len(starting.intersection(chosen)) >= share * len(chosen)


def test_what_is_filled_in_does_not_change_the_config(scripts):
    """A plain copy of the arguments that `parse_args` returns gives the config of the command line, for every tenth
    script."""
    for script in scripts[::10]:
        reading = read(script["argv"], world_size=script["world"]["nnodes"] * script["world"]["nproc"])
        if not reading.errors and not isinstance(reading.config.model_config.unpadded_vocab_size, Unknown):
            assert init_configs_from_args(Namespace(**vars(reading.args))) == reading.config, script["id"]
