"""The functions that docs/loaders.md prints, and trainings that draw their data by them."""

import re
from functools import partial
from typing import Any

import numpy as np

from tests.support.assets import ROOT
from tests.support.layouts import Rows, train


def printed() -> list[dict[str, Any]]:
    """For each Python block of docs/loaders.md the names that it defines, with their values."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "loaders.md").read_text(encoding="utf-8"), re.DOTALL)
    names: list[dict[str, Any]] = [{} for _ in blocks]
    for block, defined in zip(blocks, names, strict=True):
        exec(block, defined)
    return names


def text() -> np.ndarray:
    """Token rows [16, 17], some of which end in padding."""
    rows = Rows().tokens.copy()
    rows[:, 1:][Rows().mask == 0] = 0
    return rows


def has_data() -> bool:
    """Whether Megatron's scripts build datasets on this rank: the first tensor-parallel rank of both ends of the
    pipeline does."""
    from pynative import parallel_state as mpu

    is_an_end = mpu.is_pipeline_first_stage(ignore_virtual=True) or mpu.is_pipeline_last_stage(ignore_virtual=True)
    return is_an_end and mpu.get_tensor_model_parallel_rank() == 0


def train_on_steps(backend, flags: str) -> tuple:
    """Train by the page's loader of whole steps and its get_batch."""
    first, _ = printed()
    return train(
        backend, flags, loader=lambda c: first["Steps"](text(), c.dataset_config), get_batch_func=first["get_batch"]
    )


def train_on_our_loader(backend, flags: str) -> tuple:
    """Train by the page's forward_step on the loader that build_pretraining_data_loader gives."""
    from pynative.training.data import build_pretraining_data_loader

    _, second = printed()
    return train(
        backend,
        flags,
        loader=lambda config: build_pretraining_data_loader(Rows(), 0),
        forward_step_func=second["forward_step"],
    )


def train_where_data_are(backend, flags: str) -> tuple:
    """Train by the page's forward_step, with data on the first tensor-parallel rank of both pipeline ends alone."""
    return train(backend, flags, has_data=has_data, forward_step_func=printed()[1]["forward_step"])


def train_without_a_function(backend, flags: str) -> tuple:
    """Train without a forward step of the script's, with data on the first tensor-parallel rank of both pipeline ends
    alone."""
    return train(backend, flags, has_data=has_data)


def train_on_keys(backend, flags: str) -> tuple:
    """Train by Megatron's older form: `broadcast_data` of named entries of one type."""
    import mindspore as ms

    from pynative.tensor_parallel import broadcast_data

    loss_func = printed()[1]["loss_func"]

    def forward_step(data_iterator, model):
        data = next(data_iterator) if data_iterator is not None else None
        ids = broadcast_data(["tokens", "labels"], data, ms.int64)
        mask = broadcast_data(["loss_mask"], data, ms.float32)["loss_mask"]
        tokens = ids["tokens"].long().contiguous()
        return model(tokens, labels=ids["labels"], loss_mask=mask), partial(loss_func, mask)

    return train(backend, flags, has_data=has_data, forward_step_func=forward_step)
