"""Recorded runs of Megatron-Core through `pretrain()` on an Ascend whose operators and HCCL calls are doubles.

Everything of ours that a training step on an Ascend runs is run: device, operators, flat memory, collectives. Each call
of MindSpore is checked against MindSpore's definition of it and against the documented limits of the kernel.
"""

from pathlib import Path

import pytest

from tests.parity.test_goldens import LAYOUTS, REPLAY_SECONDS, check, script
from tests.support.ascend.stack import ascend_job
from tests.support.ascend.streams import Posted, check_order
from tests.support.assets import asset
from tests.support.distributed import run
from tests.support.engine import config_of

ROWS = [
    *[("gpt2", layout) for layout in ("1 rank", "tp2", "pp2", "cp2 ring", "cp2 ulysses")],
    *[("llama", layout) for layout in ("1 rank", "tp2 sp", "cp2 ring")],
]
FUSED = {"gpt2": "", "llama": "--use-fused-swiglu --use-fused-rotary-pos-emb --use-fused-rmsnorm"}
"""Every fused operator that a model has a flag for; attention's is in all of them."""


def train(carrier, case: str, out: str, flags: list[str]) -> list[Posted]:
    """One rank's part of a replay; what it posted to HCCL."""
    config = config_of(flags, carrier.world_size)
    with ascend_job(carrier, config) as posted:
        script().run_case(Path(case), Path(out), config)
    return posted


@pytest.mark.parametrize(("name", "layout"), ROWS)
def test_the_ascend_stack_replays_megatrons_curve(name, layout, tmp_path):
    world, layout_flags = LAYOUTS[layout]
    case, tool = asset(f"golden/{name}"), script()
    asked = f"{layout_flags} --device-target Ascend --use-flash-attn {FUSED[name]}"
    flags = [*tool.case_flags(case), *asked.split()]
    posted = run(world, train, str(case), str(tmp_path), flags, timeout=REPLAY_SECONDS)
    check_order(posted)
    assert world == 1 or all(len(each) > 100 for each in posted), "ranks that trained together must have communicated"
    check(name, tool.compare(case, tmp_path))
