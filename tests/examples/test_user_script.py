"""The script that users of the earlier system have, taken from its documentation as it stands there, trains here.

Changed are the import prefixes and the device; given are what the document leaves to the reader: `get_batch`, datasets,
and extra arguments.
"""

import json
import re
import subprocess

import pytest

from pynative.launch import msrun_command, quiet_environment
from tests.support.assets import ROOT
from tests.support.printed.blocks import python_blocks
from tests.support.printed.named import PREFIXES

CHANGED = {**PREFIXES, '"Ascend"': '"CPU"'}
BEFORE = """
import enum
import numpy as np
import mindspore as ms
from mapping import initialize_megatron, get_args, init_configs_from_args
from pynative.training.data import build_pretraining_data_loader, get_train_valid_test_num_samples
from pynative.training.utils import set_parallel_context, set_seed

def _add_pangu_args(parser):
    parser.add_argument("--pangu-rows", type=int, default=4)
    return parser

class Rows:  # the same few over and over
    def __init__(self, samples):
        self.samples = samples
        self.rows = np.random.default_rng(5).integers(0, 64, (get_args().pangu_rows, 17)).astype(np.int32)

    def __len__(self):
        return self.samples

    def __getitem__(self, i):
        return {"tokens": self.rows[i % len(self.rows)]}

def train_valid_test_datasets_provider(samples):
    assert samples == (12 * 4, 0, 0)
    return Rows(samples[0]), None, None

def get_batch(data_iterator):
    rows = ms.Tensor(next(data_iterator)["tokens"])
    tokens = rows[:, :-1]
    return {"tokens": tokens, "labels": rows[:, 1:], "loss_mask": ms.ops.ones(tokens.shape, ms.float32),
            "position_ids": ms.ops.arange(16).expand_dims(0).tile((tokens.shape[0], 1)), "attention_mask": None}
"""
LOG_LINE = r"^INFO - Epoch: \d+, Step: \d+, Loss: \d+\.\d{16}, .*Learning_rate: \d+\.\d{16}, .*Time: \d+\.\d\d ms$"
# The document first shows its own GPTModel and then imports the library's; each is tried.
LIBRARY_MODEL = "from mindspeed_ms.legacy.model.gpt_model import GPTModel"
FLAGS = (
    "--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 16 --max-position-embeddings 16 "
    "--micro-batch-size 1 --global-batch-size 4 --train-iters 12 --lr 1e-2 --vocab-size 64 --padded-vocab-size 64 "
    "--tokenizer-type NullTokenizer --attention-dropout 0 --hidden-dropout 0 --log-interval 1 --eval-iters 0 "
    "--save-interval 100"
)


def document_script(own_model: bool) -> str:
    """The document's Python blocks in order as one script, with the changes above."""
    script = "\n".join([BEFORE, *python_blocks("003")])
    if own_model:
        script = script.replace(LIBRARY_MODEL, "")
    for theirs, ours in CHANGED.items():
        script = script.replace(theirs, ours)
    return script


@pytest.mark.parametrize(
    ("own_model", "processes", "layout"),
    [
        (True, 1, ""),
        (False, 1, ""),
        (True, 2, "--pipeline-model-parallel-size 2"),
        (True, 2, "--tensor-model-parallel-size 2"),
    ],
)
def test_the_documents_script_trains(own_model, processes, layout, tmp_path):
    """It runs through msrun, its loss falls, and its log has the documented form."""
    script = tmp_path / "pretrain_gpt.py"
    script.write_text(document_script(own_model))
    arguments = [*FLAGS.split(), *layout.split(), "--save", str(tmp_path / "out")]
    command = msrun_command(script, arguments, processes, tmp_path)
    environment = {**quiet_environment(), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=200)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    for rank in range(processes):
        log = (tmp_path / f"worker_{rank}.log").read_text()
        assert len(re.findall(LOG_LINE, log, re.MULTILINE)) == 12
        assert log.rstrip().endswith("Training success!")
    metrics = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in metrics] == list(range(1, 13))
    assert metrics[-1]["loss"] < metrics[0]["loss"] - 0.3
