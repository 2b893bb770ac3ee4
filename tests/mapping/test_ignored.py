"""A key or flag that is reported as ignored can be left out: the config is the same without it."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from mapping import init_configs_from_dict
from mapping.readers import deepspeed
from mapping.readers.yaml_file import values_of
from mapping.reading import read
from parallel_core.config import AllConfig
from tests.support.assets import ROOT, asset
from tests.support.mapping.lines import line
from tests.support.mapping.yaml_files import MEGATRON, nested, sections

STEP = {"type": "MFTrainOneStepCell", "use_clip_grad": True, "max_grad_norm": 0.5, "local_norm": True}
HOT = {"expert_num": 8, "enable_cold_hot_expert": True, "hot_expert_num": 1, "moe_module_name": "network.blocks"}
ADAPTERS = {"target_cells": [{"target_cells": [".*out_proj"]}], "lora_alpha": 32}
SCALE = {"loss_scale_value": 1024, "scale_window": 20, "scale_factor": 2}
HALF = {"compute_dtype": "float16"}

FILES: dict[str, dict[str, Any]] = {
    "Megatron's example": yaml.safe_load(asset("megatron_flags/gpt_config.yaml").read_text()),
    "Megatron's layout": MEGATRON,
    "38B": yaml.safe_load((ROOT / "examples/gpt/pretrain_gpt_38BV3.yaml").read_text()),
    "nested": nested(precision={"compute_dtype": "bfloat16", "softmax_compute_dtype": "bfloat16"}),
    "clipped": sections(runner_wrapper=STEP),
    "not clipped": sections(runner_wrapper=STEP | {"use_clip_grad": False}),
    "clipped as it is by default": sections(runner_wrapper={"type": STEP["type"], "use_clip_grad": True}),
    "a runner in place of its sections": sections() | {"use_clip_grad": True, "max_grad_norm": 0.5},
    **{
        f"scale {kind}": sections(model_config=HALF, runner_wrapper={"scale_sense": {"type": kind} | SCALE})
        for kind in ("AdaptiveLossScaleUpdateCell", "DynamicLossScaleUpdateCell", "FixedLossScaleUpdateCell")
    },
    "hot experts": sections(moe_config=HOT),
    "cold experts": sections(moe_config=HOT | {"enable_cold_hot_expert": False}),
    "adapters": sections(lora_config={"use_lora": True, **ADAPTERS}),
    "adapters of a rank": sections(lora_config={"use_lora": True, "lora_rank": 4, **ADAPTERS}),
    "no adapters": sections(lora_config={"use_lora": False, "lora_rank": 4, **ADAPTERS}),
    "types": sections(
        model_config=HALF | {"layernorm_compute_dtype": "float32", "mask_func_type": "attn_mask_add", "offset": 0},
        parallel_config={"recv_dtype": "float16", "data_parallel": 1},
        dataset_config={"shuffle": False, "data_layout": "BSH", "train_samples": 0, "dataset_dir": "x"},
        optimizer_config={"zero_config": {"grad_allreduce_op": "mean"}, "no_weight_decay_params": []},
        runner_config={"batch_size": 2, "sink_mode": True, "sink_size": 2},
        callbacks=[
            {"type": "ObsMonitor"},
            {"type": "SummaryMonitor", "summary_dir": "x", "keep_default_action": False},
        ],
        lazy_inline=True,
    ),
}


def without(content: dict[str, Any], key: str) -> dict[str, Any]:
    """A copy of the content without `key`: a dotted path, in Megatron's layout a key under its heading, or an entry
    `name[n]` of a list."""
    left = deepcopy(content)
    of_list = re.fullmatch(r"(\w+)\[(\d+)\](?:\.(\w+))?", key)
    if of_list:
        name, number, option = of_list.groups()
        entries, place = (left[name][int(number)], option) if option else (left[name], int(number))
        del entries[place]
        return left
    parts = [part for part in (left, left.get("language_model"), left.get("model_parallel")) if part]
    for name in key.split(".")[:-1]:
        parts = [part[name] for part in parts if name in part]
    (part,) = [part for part in parts if key.rpartition(".")[2] in part]
    del part[key.rpartition(".")[2]]
    return left


def config_of(content: dict[str, Any]) -> AllConfig:
    """The config of a file's content, on 32 processes for the nested layout."""
    return init_configs_from_dict(content, world_size=content.get("accelerate_config") and 32)


@pytest.mark.parametrize("content", FILES.values(), ids=FILES)
def test_a_key_of_a_file_that_is_ignored_can_go(content):
    """Each ignored key of a YAML file, left out, gives the same config."""
    given, findings = values_of(content, "x.yaml")
    ignored = {entry.name for entry in given if entry.reason and not entry.target}
    whole = config_of(content)
    assert not findings
    assert [key for key in ignored if config_of(without(content, key)) != whole] == []


def test_the_files_have_keys_that_are_ignored():
    """Files of each layout do have ignored keys, so that the test above tries something."""
    kinds = {name: sum(bool(entry.reason) for entry in values_of(FILES[name], "x")[0]) for name in FILES}
    assert kinds["Megatron's example"] > 10 and kinds["types"] > 10 and kinds["no adapters"] > 1


JSON: dict[str, dict[str, Any]] = {
    "states in host memory": {"device": "cpu", "nvme_path": "/nvme", "ratio": 0.5, "pin_memory": True},
    "states in files": {"device": "nvme", "nvme_path": "/nvme", "buffer_count": 4},
    "states where they are": {"device": "none", "nvme_path": "/nvme"},
}


@pytest.mark.parametrize("offload", JSON.values(), ids=JSON)
def test_a_key_of_deepspeed_that_is_ignored_can_go(offload, tmp_path):
    """Each ignored key of a DeepSpeed file, left out, gives the same config."""
    optimizer = {"type": "AdamW", "params": {"lr": 1e-2, "momentum": 0.5, "torch_adam": True}}
    zero = {"stage": 2, "offload_optimizer": offload, "contiguous_gradients": True}
    content = {"zero_optimization": zero, "optimizer": optimizer, "steps_per_print": 5}

    def config(content: dict) -> AllConfig:
        Path(tmp_path, "x.json").write_text(json.dumps(content))
        found = read([*line("~lr"), "--deepspeed-config", str(tmp_path / "x.json")], world_size=2)
        assert found.errors == []
        return found.config

    whole = config(content)
    ignored = {entry.name for entry in deepspeed.read(str(tmp_path / "x.json")).given if entry.reason}
    assert len(ignored) > 3
    assert [key for key in ignored if config(without(content, key)) != whole] == []


CLIPPED = [
    ({"type": "MFTrainOneStepCell"}, 0.0),
    ({"max_grad_norm": 0.5}, 0.0),
    ({"type": "MFTrainOneStepCell", "max_grad_norm": 0.5}, 0.0),
    ({"use_clip_grad": False, "max_grad_norm": 0.5}, 0.0),
    ({"use_clip_grad": True}, 1.0),
    ({"use_clip_grad": True, "max_grad_norm": 0.5}, 0.5),
    ({}, 1.0),
]
"""(keys of MindFormers' training step, the norm that gradients are clipped to; 0 is no clipping)."""


@pytest.mark.parametrize(
    "content, norm",
    [
        *((sections(runner_wrapper=runner), norm) for runner, norm in CLIPPED),
        *((sections() | runner, norm) for runner, norm in CLIPPED),
        (sections(runner_wrapper={"scale_sense": {"scale_window": 20}}), 0.0),
    ],
)
def test_gradients_are_clipped_if_use_clip_grad_is_true(content, norm, capsys):
    """Gradients are clipped only if use_clip_grad is true (default false), to max_grad_norm (default 1.0); a norm that
    does nothing has a line."""
    assert init_configs_from_dict(content).optimizer_config.clip_grad == norm
    said, has_norm = capsys.readouterr().out, "max_grad_norm" in {**content, **content.get("runner_wrapper", {})}
    assert "use_clip_grad: " not in said and ("not clipped" in said) == (has_norm and norm == 0.0)


@pytest.mark.parametrize("norm", [0.5, 1.0])
def test_a_norm_that_is_given_by_its_own_name_counts_beside_a_runner(norm):
    """optimizer_config.clip_grad counts beside MindFormers' runner_wrapper."""
    content = sections(runner_wrapper={"type": "MFTrainOneStepCell"}, optimizer_config={"clip_grad": norm})
    assert init_configs_from_dict(content).optimizer_config.clip_grad == norm


def test_a_flag_counts_beside_a_runner(tmp_path):
    """--clip-grad counts beside a YAML with MindFormers' runner_wrapper."""
    Path(tmp_path, "x.yaml").write_text(yaml.safe_dump(sections(runner_wrapper={"type": "MFTrainOneStepCell"})))
    found = read(["--yaml-cfg", str(tmp_path / "x.yaml"), "--clip-grad", "2"], world_size=1)
    assert found.errors == [] and found.config.optimizer_config.clip_grad == 2.0
