"""The script that users of MindSpeed-Core-MS have, taken from its documentation as it stands there, trains here.

Changed are the import prefixes, the device and the number of processes; given are what the document leaves to the
reader: `get_batch`, datasets, and arguments. It is launched as the document launches it on one process and on two; the
other runs of it are by the tests' own ranks.
"""

import json
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
import yaml

from pynative.startup.launch import free_port
from tests.support import warm
from tests.support.assets import ROOT
from tests.support.distributed import run
from tests.support.printed.blocks import blocks, python_blocks
from tests.support.printed.named import PREFIXES
from tests.support.user_scripts import run_script

CHANGED = {**PREFIXES, '"Ascend"': '"CPU"'}
BEFORE = """
import enum
import numpy as np
import mindspore as ms
from mapping import initialize_megatron, get_args, init_configs_from_args
from pynative.training.data import build_pretraining_data_loader, get_train_valid_test_num_samples
from pynative.training.utils import set_parallel_context, set_seed

def _add_pangu_args(parser):
    parser.add_argument("--pangu-rows", type=int, default=8)
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
    assert samples == (get_args().train_iters * 4, 0, 0)
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
LAST_OF_THE_MODEL = "        post_process=post_process\n    )\n\n    return network_with_loss"
FLAGS = (
    "--num-layers 4 --hidden-size 32 --num-attention-heads 4 --seq-length 16 --max-position-embeddings 16 "
    "--micro-batch-size 1 --global-batch-size 4 --train-iters 12 --lr-decay-iters 12 --lr 1e-2 --vocab-size 64 "
    "--padded-vocab-size 64 --tokenizer-type NullTokenizer --attention-dropout 0 --hidden-dropout 0 --log-interval 1 "
    "--eval-iters 0 --save-interval 100"
)
RUN = (  # what the document's YAML leaves to flags
    "--global-batch-size 4 --train-iters 12 --lr-decay-iters 12 --lr 1e-2 --log-interval 1 --eval-iters 0 "
    "--save-interval 100"
)
FEW = "--train-iters 4"
"""Steps of runs that are compared with the first losses of a longer run."""
TP2_SP = "--tensor-model-parallel-size 2 --sequence-parallel"
PP2 = "--pipeline-model-parallel-size 2"
TOLERANCE = 1e-5
BFLOAT16_TOLERANCE = 1e-3
"""Relative, for losses. Sums that ranks share are rounded to 8 bits before they are added: measured 4e-4; float32
differs by 9e-4."""
VIRTUAL = {"virtual_pipeline_model_parallel_size": 2}
SINGLE = {"compute_dtype": "float32", "residual-connection": "float32"}


def document_script(own_model: bool = True, masks: bool = True) -> str:
    """The document's Python blocks in order as one script, with the changes above.

    `masks`: the model is given the end-of-document token that its masks and positions are made from.
    """
    script = "\n".join([BEFORE, *python_blocks("003")])
    assert LIBRARY_MODEL in script and LAST_OF_THE_MODEL in script
    if own_model:
        script = script.replace(LIBRARY_MODEL, "")
    if masks:
        more = LAST_OF_THE_MODEL.replace("\n    )", ",\n        eod=7, reset_position_ids=True\n    )")
        script = script.replace(LAST_OF_THE_MODEL, more)
    for theirs, ours in CHANGED.items():
        script = script.replace(theirs, ours)
    return script


def document_shell_script(processes: int, arguments: list[str]) -> str:
    """The document's environment and msrun command on a free port, with these arguments behind it."""
    environment, command = (block.text for block in blocks("003") if block.number in ("10", "11"))
    changes = {"num 8": f"num {processes}", "num=8": f"num={processes}", "8848": str(free_port())}
    for printed, here in changes.items():
        assert printed in command
        command = command.replace(printed, here)
    return f"{environment}{command.rstrip()} {' '.join(arguments)}\n"


def document_yaml(precision: dict[str, str], **parallelization) -> str:
    """The document's YAML blocks as one file: small sizes; one process but for these keys of its `parallelization`;
    these keys of its `precision` changed."""
    content: dict = {}
    for block in blocks("003"):
        content |= yaml.safe_load(block.text) if block.language == "yaml" else {}
    small = {
        "embedding": {"hidden_size": 32},
        "tokenizer": {"padded_size": 64},
        "position": {"max_size": 16},
        "blocks": {"num_layers": 5, "attention": {"head_num": 4, "kv_group_size": 2}, "ffn": {"hidden_size": 48}},
    }
    alone = {"tensor_parallel": 1, "use_sequence_parallel": False}
    stages = {"num_stages": 1, "layer_list": None, "num_layers_per_vpp": None}
    one_stage = {**stages, "virtual_pipeline_model_parallel_size": None}
    changes = {
        "model_config": {"llm": small},
        "accelerate_config": {
            "precision": precision,
            "parallelization": {**alone, "pipeline": one_stage},
        },
    }
    return yaml.safe_dump(
        changed(changed(content, changes), {"accelerate_config": {"parallelization": parallelization}})
    )


def changed(content: dict, changes: dict) -> dict:
    """`content` with other values for keys that it has, at any depth."""
    assert changes.keys() <= content.keys(), changes.keys() - content.keys()
    inner = {key: changed(content[key], value) if isinstance(value, dict) else value for key, value in changes.items()}
    return {**content, **inner}


def launched(folder: Path, script: str, processes: int = 1, flags: str = "") -> np.ndarray:
    """Losses after `bash pretrain_gpt.sh` with the document's msrun command. Checked too: each rank's log lies where
    the document says and has its lines."""
    folder.mkdir(exist_ok=True)
    (folder / "pretrain_gpt.py").write_text(script)
    arguments = [*FLAGS.split(), *flags.split(), "--save", "out"]
    (folder / "pretrain_gpt.sh").write_text(document_shell_script(processes, arguments))
    environment = {**warm.programs_first(), "PYTHONPATH": str(ROOT)}
    start = next(block.text for block in blocks("003") if block.number == "12").split()
    done = subprocess.run(start, capture_output=True, text=True, env=environment, cwd=folder, timeout=200)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    losses = losses_in(folder)
    for rank in range(processes):
        log = (folder / "msrun_log" / f"worker_{rank}.log").read_text()
        assert len(re.findall(LOG_LINE, log, re.MULTILINE)) == len(losses)
        assert log.rstrip().endswith("Training success!")
    return losses


def losses_of_script(folder: Path, script: str, processes: int = 1, flags: str = "", basis: str = FLAGS) -> np.ndarray:
    """Losses after the script was run as __main__ by `processes` ranks of the tests' pool."""
    folder.mkdir(exist_ok=True)
    file = folder / "pretrain_gpt.py"
    file.write_text(script)
    arguments = [*basis.split(), *flags.split(), "--save", "out"]
    for code, errors in run(processes, run_script, file, arguments, folder):
        assert code == 0, errors
    return losses_in(folder)


def losses_in(folder: Path) -> np.ndarray:
    """The losses, one a step, in the metrics file of a run in this folder."""
    lines = (folder / "out" / "metrics.jsonl").read_text().splitlines()
    return np.array([json.loads(line)["loss"] for line in lines])


@pytest.fixture(scope="module")
def losses(tmp_path_factory):
    """Losses of the document's own model on one rank, with document masks; computed once for all tests."""
    found = launched(tmp_path_factory.mktemp("alone"), document_script())
    assert len(found) == 12 and found[-2:].mean() < found[:2].mean() - 0.3
    return found


@pytest.mark.parametrize(
    ("how", "layout"),
    [
        (launched, TP2_SP),
        (losses_of_script, PP2),
        (losses_of_script, f"{PP2} --virtual-pipeline-model-parallel-size 2"),
        (losses_of_script, "--context-parallel-size 2"),
    ],
)
def test_layouts_give_equal_losses(how, layout, losses, tmp_path):
    """tp2 sp under msrun; pp2, virtual stages and cp2 on the pool: the losses of one rank, with document masks and
    restarted positions."""
    found = how(tmp_path, document_script(), 2, f"{layout} {FEW}")
    np.testing.assert_allclose(found, losses[: len(found)], rtol=TOLERANCE)


def test_the_documents_model_is_the_librarys(losses, tmp_path):
    """The document's own model and the library's have the same losses with masks, and without masks the same other
    losses."""
    library = losses_of_script(tmp_path / "library", document_script(own_model=False), flags=FEW)
    np.testing.assert_allclose(library, losses[:4], rtol=TOLERANCE)
    scripts = {str(own): document_script(own, masks=False) for own in (True, False)}
    plain = [losses_of_script(tmp_path / name, script, flags=FEW) for name, script in scripts.items()]
    np.testing.assert_allclose(*plain, rtol=TOLERANCE)
    assert abs(plain[0] - losses[:4]).max() > 1e-3


def test_resuming_at_another_layout(losses, tmp_path):
    """Five steps on two tensor-parallel ranks, the rest on two pipeline stages: the losses of one
    uninterrupted rank."""
    first = losses_of_script(tmp_path, document_script(), 2, f"{TP2_SP} --train-iters 5")
    rest = losses_of_script(tmp_path / "rest", document_script(), 2, f"{PP2} --load {tmp_path / 'out'}")
    np.testing.assert_allclose([*first, *rest], losses, rtol=TOLERANCE)


def losses_of_yaml(
    folder: Path, processes: int = 1, flags: str = "", precision: dict[str, str] | None = None, **parallelization
) -> np.ndarray:
    folder.mkdir(exist_ok=True)
    (folder / "pretrain_gpt_38BV3.yaml").write_text(document_yaml(precision or {}, **parallelization))
    basis = f"--yaml-cfg pretrain_gpt_38BV3.yaml {RUN} {flags}"
    return losses_of_script(folder, document_script(), processes, basis=basis)


@pytest.fixture(scope="module")
def losses_as_printed(tmp_path_factory):
    """Losses of the document's YAML on one rank: sandwich norm, grouped queries, swiglu, rotary positions; float32
    parameters, bfloat16 elsewhere but for softmax, logits and gradients. They equal float32's within rounding."""
    printed = losses_of_yaml(tmp_path_factory.mktemp("printed"))
    single = losses_of_yaml(tmp_path_factory.mktemp("single"), precision=SINGLE)
    assert printed[-2:].mean() < printed[:2].mean() - 0.5
    assert 1e-5 < abs(printed - single).max() < 5e-3
    return printed


@pytest.mark.parametrize(
    ("flags", "parallelization", "tolerance"),
    [
        ("", {"tensor_parallel": 2, "use_sequence_parallel": True}, BFLOAT16_TOLERANCE),
        ("--context-parallel-size 2", {}, BFLOAT16_TOLERANCE),
        ("", {"pipeline": {"num_stages": 2, "layer_list": "[2,3]"}}, TOLERANCE),
        ("", {"pipeline": {"num_stages": 2, "layer_list": "[[1,1],[2,1]]", **VIRTUAL}}, TOLERANCE),
    ],
    ids=["tp2sp", "cp2", "pp2", "pp2vpp2"],
)
def test_the_documents_yaml_gives_equal_losses(flags, parallelization, tolerance, losses_as_printed, tmp_path):
    """The YAML with its bfloat16 on tp2 sp, cp2, pp2 and virtual stages: one rank's losses. Pipelines to float32's
    tolerance, since stages send what they compute, so nothing is rounded twice."""
    found = losses_of_yaml(tmp_path, 2, f"{flags} {FEW}", **parallelization)
    np.testing.assert_allclose(found, losses_as_printed[:4], rtol=tolerance)
