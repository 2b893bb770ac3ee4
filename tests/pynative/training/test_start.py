"""The lines that a run logs at its start about its model, its data and its checkpoint are true."""

import numpy as np

from tests.support.distributed import run
from tests.support.pretraining import BATCHES, listening, pretrain_tiny

MODEL = 64 * 32 + 16 * 32 + 2 * (12 * 32 * 32 + 13 * 32) + 2 * 32
"""Parameters of the small model: embedding, positions, two layers and the last norm."""


def said(backend, flags: str, **arguments) -> list[str]:
    with listening() as lines:
        pretrain_tiny(backend, flags, **arguments)
    return lines[: 1 + next(number for number, line in enumerate(lines) if line.startswith("Training: "))]


def parameters(lines: list[str]) -> str:
    return next(line for line in lines if line.startswith("Parameters: "))


def test_parameters_are_counted_once():
    """ "in all" counts no copy of a tied embedding or norm and no replica twice; "of this rank" counts the rank's own
    shares."""
    flags = f"{BATCHES} --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"
    first, _, last, _ = (parameters(lines) for lines in run(4, said, flags))
    layer = 12 * 32 * 32 // 2 + 3 * 32 // 2 + 4 * 32 // 2 + 6 * 32
    of_first, of_last = 64 * 32 // 2 + 16 * 32 + layer, 64 * 32 // 2 + layer + 2 * 32
    assert first == f"Parameters: {MODEL:,} in all, {of_first:,} of this rank, {of_first:,} of these are trained"
    assert last == f"Parameters: {MODEL:,} in all, {of_last:,} of this rank, {of_last:,} of these are trained"
    (replica, _) = run(2, said, BATCHES)
    assert parameters(replica).startswith(f"Parameters: {MODEL:,} in all, {MODEL:,} of this rank")


def test_adapters_alone_are_trained():
    """ "are trained" counts adapters' parameters only, as the base is frozen."""
    flags = f"{BATCHES} --lora-r 2 --lora-alpha 4 --lora-target-modules linear_proj"
    (lines,) = run(1, said, flags)
    assert f"{2 * 2 * (32 + 32):,} of these are trained" in parameters(lines)


def test_own_loaders_are_named():
    """The line about data names a script's train_data_loader and its type, not the flags' files."""
    batch = {name: np.ones((4, 16), np.int32) for name in ("tokens", "labels", "position_ids")}
    batch["loss_mask"] = np.ones((4, 16), np.float32)
    (lines,) = run(1, said, BATCHES, train_data_loader=[batch])
    assert any(line.startswith("Data: train_data_loader (list), sequences of 16") for line in lines)


def test_where_training_begins_and_from_what(tmp_path):
    """The line says initial values, a run's checkpoint with its iteration, or weights alone."""
    save = f"{BATCHES} --save {tmp_path} --save-interval 1 --load {tmp_path}"
    (fresh,) = run(1, said, f"{save} --exit-interval 1")
    (resumed,) = run(1, said, save)
    (tuned,) = run(1, said, f"{BATCHES} --load {tmp_path} --finetune")
    assert fresh[-1] == "Training: step 1 to 2, from initial values"
    assert resumed[-1] == f"Training: step 2 to 2, from {tmp_path / 'iter_0000001'}"
    assert tuned[-1] == f"Training: step 1 to 2, from the weights of {tmp_path}"
