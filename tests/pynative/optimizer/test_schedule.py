"""The learning-rate schedule of a DeepSpeed file."""

import json

import pytest

from pynative.optimizer import get_optimizer_param_scheduler
from tests.support.engine import config_of

SIZES = (
    "--num-layers 1 --hidden-size 8 --num-attention-heads 2 --seq-length 8 --max-position-embeddings 8 --vocab-size 50 "
    "--tokenizer-type NullTokenizer --micro-batch-size 1 --global-batch-size 4 --train-iters 9 --eval-iters 0"
)


def test_a_deepspeed_files_schedule_steps_as_deepspeeds(tmp_path):
    """WarmupDecayLR has the lowest rate in the first two steps: DeepSpeed's scheduler starts at batch -1 and steps
    after an update, to batch 0, with that rate again."""
    keys = {"warmup_min_lr": 0.1, "warmup_max_lr": 0.5, "warmup_num_steps": 4, "total_num_steps": 6}
    scheduler = {"type": "WarmupDecayLR", "params": {**keys, "warmup_type": "linear"}}
    (tmp_path / "x.json").write_text(json.dumps({"scheduler": scheduler}))
    ours, rates = get_optimizer_param_scheduler(config_of(f"{SIZES} --deepspeed-config {tmp_path / 'x.json'}", 1)), []
    for _ in range(9):
        rates.append(ours.get_lr())
        ours.step(4)
    assert rates == pytest.approx([0.1, 0.1, 0.2, 0.3, 0.4, 0.5, 0.3, 0.1, 0.1])
