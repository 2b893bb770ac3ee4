"""Checkpoints of state that the replicas share out: each writes its part, and any layout reads what it needs of it."""

import json
from math import prod
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from parallel_core.checkpoint import commit
from tests.support.checkpoint_jobs import Outcome, check_taken_over, train, train_on
from tests.support.distributed import run

SHARDED, TP2, PP2 = "--use-distributed-optimizer", "--tensor-model-parallel-size 2", "--pipeline-model-parallel-size 2"
TWICE = f"{SHARDED} --num-distributed-optimizer-instances 2"
LAYOUTS = {
    "one": (1, ""),
    "dp2": (2, ""),
    "tp2": (2, TP2),
    "dp2 sharded": (2, SHARDED),
    "dp4 sharded": (4, f"{SHARDED} --micro-batch-size 1"),
    "dp4 sharded, twice": (4, f"{TWICE} --micro-batch-size 1"),
    "dp2 tp2 sharded": (4, f"{SHARDED} {TP2}"),
    "dp2 pp2 sharded": (4, f"{SHARDED} {PP2}"),
}
LOADED_AT = {
    "one": ("dp2 sharded", "dp4 sharded, twice", "dp2 tp2 sharded", "dp2 pp2 sharded"),
    "dp2 sharded": ("one", "dp2", "tp2", "dp4 sharded", "dp2 pp2 sharded"),
    "dp4 sharded, twice": ("one", "dp2 sharded"),
    "dp2 tp2 sharded": ("one", "dp4 sharded", "dp2 tp2 sharded"),
}
"""Layout of the run that saves -> layouts that take over."""
SWIGLU = "--swiglu --ffn-hidden-size 48 --lr-decay-iters 6"
"""Model flags of all runs: the gated first matrix is cut in two fused parts, the second matrix along its columns."""


def train_at(layout: str, flags: str, steps: bool = True) -> Outcome:
    """Rank 0's outcome of a run at this layout; steps=False: right after loading."""
    world, layout_flags = LAYOUTS[layout]
    return train_on(world, f"{SWIGLU} {flags} {layout_flags}", steps)


@pytest.mark.parametrize("layout", LOADED_AT)
def test_any_layout_takes_over_what_any_other_saved(tmp_path, layout):
    """Weights, float32 values, moments, step count, schedule and place in the data equal the saving run's to
    the bit."""
    others = [LAYOUTS[other] for other in LOADED_AT[layout]]
    check_taken_over(LAYOUTS[layout], others, f"{SWIGLU} --bf16", tmp_path)


def shares(directory: Path, prefix: str) -> list[float]:
    """The share of the latest checkpoint's tensors with this prefix that each file has."""
    manifest = json.loads((commit.find(directory) / "manifest.json").read_text())
    held = dict.fromkeys(manifest["files"], 0)
    for name, tensor in manifest["tensors"].items():
        for shard in tensor["shards"] if name.startswith(prefix) else ():
            held[shard["file"]] += sum(prod(box["shape"]) for box in shard["pieces"])
    return [elements / sum(held.values()) for elements in held.values()]


def test_every_rank_writes_its_own_part_and_no_more(tmp_path):
    """Each of two replicas' files has half of the optimizer's state, up to the buffer's padding."""
    train_at("dp2 sharded", f"--save {tmp_path}")
    first, second = shares(tmp_path, "exp_avg")
    assert max(first, second) < 0.53


def train_without_gathers(backend, flags: str) -> None:
    """Train, failing if a parameter is gathered while a checkpoint is begun."""
    from pynative.checkpointing.save import Saving
    from pynative.distributed.gathered_parameters import GatheredBucket

    began = Saving.begin.__func__

    def begin(*arguments, **named):
        with patch.object(GatheredBucket, "arrive", None):
            return began(*arguments, **named)

    with patch.object(Saving, "begin", classmethod(begin)):
        train(backend, flags)


def test_weights_alone_of_parameters_that_are_cut(tmp_path):
    """ZeRO stage 3 without optimizer states: each rank writes its part of the weights without gathering, and any layout
    reads them."""
    flags = f"{SWIGLU} --zero-stage 3 --untie-embeddings-and-output-weights"
    run(2, train_without_gathers, f"{flags} --no-save-optim --save {tmp_path}")
    before = train_on(2, flags)
    assert max(shares(tmp_path, "decoder")) < 0.6 and len(shares(tmp_path, "decoder")) == 2
    for layout, stage in (("dp2", 3), ("tp2", 0)):
        after = train_at(layout, f"{flags} --zero-stage {stage} --no-load-optim --load {tmp_path}", steps=False)
        assert after.weights.keys() == before.weights.keys()
        for name, values in before.weights.items():
            np.testing.assert_array_equal(after.weights[name], values, err_msg=name)


def test_rows_that_a_checkpoint_lacks_keep_their_values(tmp_path):
    """Rows of a vocabulary that is padded to more than the checkpoint's keep their initial values, with ZeRO stage 3
    the same as without."""
    flags = "--untie-embeddings-and-output-weights"
    train_at("one", f"{flags} --padded-vocab-size 62 --save {tmp_path}")
    padded = f"{flags} --no-load-optim --load {tmp_path}"
    plain, cut = (train_at("dp2", f"{padded} --zero-stage {stage}", steps=False).weights for stage in (0, 3))
    (name,) = (name for name in plain if name.endswith("word_embeddings.weight"))
    assert plain[name].shape[0] == 64 and plain[name][62:].any(axis=1).all()
    np.testing.assert_array_equal(cut[name], plain[name])
