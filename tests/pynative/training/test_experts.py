"""What is logged and recorded of experts: from counts of choices alone."""

import subprocess
import sys
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest

from pynative import parallel_state
from pynative.training.callbacks import MoEDropRateCallback, SummaryMonitor, experts
from tests.support.assets import ROOT

COUNTS = np.array([[0.0] * 4, [10, 2, 2, 2], [4, 4, 4, 4]])


@pytest.fixture(autouse=True)
def lines(monkeypatch):
    """The lines that rank 0 logs."""
    written = []
    monkeypatch.setattr(experts, "log", written.append)
    monkeypatch.setattr(parallel_state, "get_global_rank", lambda: 0)
    return written


def state(iteration=1, counts=COUNTS):
    """A run of three layers, the first of them dense."""
    model = SimpleNamespace(
        num_layers=2,
        moe_config=SimpleNamespace(num_experts=4),
        multi_token_prediction=SimpleNamespace(num_layers=1),
    )
    result = SimpleNamespace(figures={"tokens_chosen": counts})
    return SimpleNamespace(iteration=iteration, result=result, config=SimpleNamespace(model_config=model))


def test_drop_rates(lines):
    """Of 16 choices an expert with capacity factor 1 takes 4: six of the first one's ten are too many."""
    callback = MoEDropRateCallback(4, 1.0, 2, 1)
    callback.on_train_begin(state())
    callback.on_step_end(state())
    assert lines == ["layer: 1, drop_rate: 0.37500", "layer: 2, drop_rate: 0.00000"]


def test_another_models_settings_are_refused():
    with pytest.raises(ValueError, match="expert_num=8"):
        MoEDropRateCallback(8, 1.0, 2, 1).on_train_begin(state())


def test_token_distributions_are_written_and_drawn(tmp_path):
    """At every second step; the picture has a band for each expert, and the hottest of the last step are printed."""
    monitor = SummaryMonitor(tmp_path, collect_freq=1, collect_tensor_freq=2, export_options={"tensor_format": "npy"})
    monitor.on_train_begin(state())
    for step in range(1, 5):
        monitor.on_step_end(state(step, COUNTS * step))
    files = sorted(path.relative_to(tmp_path).as_posix().split("/", 1)[1] for path in tmp_path.rglob("*.npy"))
    assert files == [f"tensor/layer-{layer}_{step}.npy" for layer in (1, 2) for step in (2, 4)]
    command = "pynative.moe.plot_token_distribution --num-layers 3 --hot_expert_num 2"
    options = ["--npy-files-load-path", str(tmp_path), "--save-path-prefix", f"{tmp_path}/pictures/"]
    done = subprocess.run(
        [sys.executable, "-m", *command.split(), *options], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "layer 1: hot_expert_index [0, 1]" in done.stdout
    picture = ElementTree.parse(tmp_path / "pictures" / "layer-1_token_distribution.svg").getroot()
    assert sum(element.tag.endswith("polygon") for element in picture) == 4
    bands = [element.get("points").split() for element in picture if element.tag.endswith("polygon")]
    assert {len(points) for points in bands} == {4} and bands[0][0].startswith("80.0,")


def test_another_format_is_refused(tmp_path):
    with pytest.raises(ValueError, match="npy"):
        SummaryMonitor(tmp_path, export_options={"tensor_format": "txt"})
