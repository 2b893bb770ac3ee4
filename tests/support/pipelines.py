"""Flags of the pipeline schedules, and a model deep enough for them."""

from tests.support.engine import TINY

SCHEDULES = {
    "1f1b": "",
    "gpipe": "--pipeline-schedule gpipe",
    "zb-h1": "--pipeline-schedule zb-h1",
    "interleaved": "--virtual-pipeline-model-parallel-size 2",
    "zb-v": "--pipeline-schedule zb-v",
    **{name: f"--pipeline-schedule {name}" for name in ("zb-h2", "zb-2p", "v-half", "v-min")},
    "zb-1p": "--enable-zero-bubble",
    "dualpipev": "--schedules-method dualpipev",
}
BASE = f"{TINY} --num-layers 8 --global-batch-size 8"
"""Flags of a model with four micro-batches, so that two stages have some of all phases; four stages have twice as many
(LONG)."""
LONG = "--global-batch-size 16"


def pipeline(schedule: str, stages: int, more: str = "") -> str:
    """Flags of a pipeline schedule on so many stages, with `more` behind."""
    return f"--pipeline-model-parallel-size {stages} {SCHEDULES[schedule]} {more}"
