"""Logs and records of experts: how many choices each gets, and how many tokens are dropped."""

import subprocess
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from pynative import parallel_state
from pynative.moe.plot_token_distribution import counts_of_layer
from pynative.training.callbacks import (
    ColdHotExpertMonitor,
    MoEDropRateCallback,
    SummaryMonitor,
    expert_callbacks,
    experts,
)
from tests.support.assets import ROOT
from tests.support.distributed import run
from tests.support.engine import TINY, config_of
from tests.support.pretraining import pretrain_tiny

COUNTS = np.array([[0.0] * 4, [10, 2, 2, 2], [4, 4, 4, 4]])
ROUTED = np.minimum(COUNTS, 4)


@pytest.fixture(autouse=True)
def lines(monkeypatch):
    """The list of lines that rank 0 logs."""
    written = []
    monkeypatch.setattr(experts, "log", written.append)
    monkeypatch.setattr(parallel_state, "get_global_rank", lambda: 0)
    return written


def state(iteration=1, counts=COUNTS):
    """A training state with figures of three layers with routers: a dense and two with experts, one of them a predicted
    depth."""
    model = SimpleNamespace(
        num_layers=2,
        moe_config=SimpleNamespace(
            num_experts=4,
            moe_expert_capacity_factor=1.0,
            monitors=SimpleNamespace(moe_drop_rate_capacity_factor=None),
        ),
        multi_token_prediction=SimpleNamespace(num_layers=1),
    )
    result = SimpleNamespace(figures={"tokens_chosen": counts, "tokens_routed": ROUTED})
    return SimpleNamespace(iteration=iteration, result=result, config=SimpleNamespace(model_config=model))


def test_drop_rates(lines):
    """Capacity factor 1 of 16 choices over 4 experts allows 4 each: the first expert's six too many are a rate of
    0.375."""
    callback = MoEDropRateCallback(4, 1.0, 2, 1)
    callback.on_train_begin(state())
    callback.on_step_end(state())
    assert lines == ["layer: 1, drop_rate: 0.37500", "layer: 2, drop_rate: 0.00000"]


@pytest.mark.parametrize(
    "given, wrong",
    [((8, 1.0, 2, 1), "expert_num=8"), ((4, 1.5, 2, 1), "1.5.*, or --moe-drop-rate-capacity-factor 1.5")],
)
def test_another_models_settings_are_refused(given, wrong):
    """MoEDropRateCallback with a number of experts or a capacity factor other than the model's is a ValueError."""
    with pytest.raises(ValueError, match=wrong):
        MoEDropRateCallback(*given).on_train_begin(state())


def test_token_distributions_are_written_and_drawn(tmp_path):
    """SummaryMonitor writes a .npy for each layer at every second step; the drawing has a band for each expert, and the
    hottest of the last step are printed."""
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
    with Image.open(tmp_path / "pictures" / "layer-1_token_distribution.jpg") as picture:
        assert picture.format == "JPEG"
        column = [picture.getpixel((400, y)) for y in range(45, 395)]
    bands = [number for number in np.abs(np.diff(np.array(column, int), axis=0)).sum(axis=1) if number > 60]
    assert 3 <= len(bands) <= 9  # four bands have three borders, each one to three rows of pixels high


def test_runs_are_merged_and_models_are_not(tmp_path):
    """If two runs recorded a step, the later counts are read; a directory with records of different numbers of experts
    is refused."""
    for run_at, step, counts in (("10", 1, [1, 2]), ("10", 2, [3, 4]), ("11", 2, [5, 6])):
        folder = tmp_path / f"export_20260101_0000{run_at}" / "tensor"
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / f"layer-0_{step}.npy", np.array(counts))
    steps, counts = counts_of_layer(tmp_path, 0)
    assert steps.tolist() == [1, 2] and counts.tolist() == [[1, 2], [5, 6]]
    np.save(tmp_path / "layer-0_3.npy", np.array([1, 2, 3]))
    with pytest.raises(ValueError, match="several models"):
        counts_of_layer(tmp_path, 0)


def test_another_format_is_refused(tmp_path):
    """SummaryMonitor refuses collect_freq 0 and a tensor_format other than npy with a ValueError."""
    with pytest.raises(ValueError, match="every 0 steps"):
        SummaryMonitor(tmp_path, collect_freq=0)
    with pytest.raises(ValueError, match="npy"):
        SummaryMonitor(tmp_path, export_options={"tensor_format": "txt"})


MOE = (
    f"{TINY} --num-experts 4 --moe-router-topk 2 --moe-layer-freq ([0]*1+[1]*1) --moe-aux-loss-coeff 0.1 "
    "--moe-z-loss-coeff 0.1 --moe-log-drop-rate --moe-per-layer-logging "
    "--global-batch-size 8 --swiglu --disable-bias-linear"
)


class Recount:
    """Rows that this rank's dispatchers sent to experts, by step (`arrived`), and its routers' choices, by step and
    micro-batch (`chosen`)."""

    def __init__(self) -> None:
        self.arrived, self.chosen = [0], [[]]

    def next_step(self) -> None:
        self.arrived.append(0)
        self.chosen.append([])

    def send(self, dispatcher, hidden, routing):
        """Count the rows that arrive, in place of the dispatcher's send; padding, which has weight 0, is not
        counted."""
        arriving = self.of_dispatcher(dispatcher, hidden, routing)

        def arrived():
            dispatched = arriving()
            self.arrived[-1] += int((dispatched.probs.asnumpy() > 0).sum())
            return dispatched

        return arrived

    def best(self, router, *given):
        probs, experts = self.of_router(router, *given)
        self.chosen[-1].append(np.bincount(experts.asnumpy().ravel(), minlength=4))
        return probs, experts

    @contextmanager
    def counting(self):
        from pynative.moe.router import TopKRouter
        from pynative.moe.token_dispatcher import MoETokenDispatcher

        self.of_dispatcher, self.of_router = MoETokenDispatcher.send, TopKRouter._best
        MoETokenDispatcher.send, TopKRouter._best = lambda *args: self.send(*args), lambda *args: self.best(*args)
        try:
            yield
        finally:
            MoETokenDispatcher.send, TopKRouter._best = self.of_dispatcher, self.of_router


def trained(backend, flags: str) -> tuple[list[str], list[dict], tuple[list[int], list]]:
    """(log lines, figures of each step, (arrived, chosen) of `Recount`) of two steps."""
    from pynative.training.callbacks import Callback, log

    lines, metrics, recount = [], [], Recount()

    class Watch(Callback):
        def on_step_end(self, state):
            metrics.append(dict(state.metrics))
            recount.next_step()

    said = experts.log, log.log
    experts.log = log.log = lines.append
    try:
        with recount.counting():
            pretrain_tiny(backend, f"{MOE} {flags}", callbacks=[Watch()])
    finally:
        experts.log, log.log = said
    return lines, metrics, (recount.arrived, recount.chosen)


CHOICES = 8 * 16 * 2
CAPACITY = "--expert-model-parallel-size 2 --moe-expert-capacity-factor"


def test_a_callback_that_a_script_gives_takes_the_place_of_the_flags(tmp_path):
    """`expert_callbacks` makes a callback for each flag, but none of a kind that the script gives itself: each line
    would be logged twice."""
    flags = f"{MOE} --moe-expert-capacity-factor 2 --hot-expert-num 1 --save-token-distribution"
    config = config_of(flags, 1).model_config
    kinds = [type(callback) for callback in expert_callbacks(config, tmp_path, [])]
    assert kinds == [MoEDropRateCallback, SummaryMonitor, ColdHotExpertMonitor]
    given = [MoEDropRateCallback(4, 2.0, 2, 0), ColdHotExpertMonitor(), SummaryMonitor(tmp_path)]
    assert expert_callbacks(config, tmp_path, given) == []


@pytest.mark.parametrize("wrong", [{"hidden_size": 77}, {"ffn_hidden_size": 77}, {"expert_parallel": 8}, None])
def test_hot_experts_of_another_model_are_refused(wrong):
    """ColdHotExpertMonitor with a script's sizes, or a configuration with a number of hot experts, that differ from the
    model's is an error."""
    config = config_of(f"{MOE} --moe-expert-capacity-factor 2 --hot-expert-num 1", 1)
    others = config_of(f"{MOE} --moe-expert-capacity-factor 2 --hot-expert-num 2", 1).moe_config
    monitor = ColdHotExpertMonitor(**wrong or {"moe_config": others})
    with pytest.raises(ValueError, match=next(iter(wrong or {"hot_expert_num": 2}))):
        monitor.on_train_begin(SimpleNamespace(config=config))


@pytest.mark.parametrize(
    "flags",
    [
        f"{CAPACITY} 1.1",
        f"{CAPACITY} 1.1 --moe-token-drop-policy position",
        f"{CAPACITY} 1.1 --moe-token-dispatcher-type allgather",
        f"{CAPACITY} 1.1 --moe-token-dispatcher-type allgather --moe-token-drop-policy position",
        f"{CAPACITY} 1.1 --moe-pad-expert-input-to-capacity",
        f"{CAPACITY} 1.1 --hot-expert-num 1 --cold-token-percent 0.5",
        f"{CAPACITY} 1.1 --hot-expert-num 1 --cold-token-percent 0.5 --moe-pad-expert-input-to-capacity",
        f"{CAPACITY} 1.1 --tensor-model-parallel-size 2 --expert-tensor-parallel-size 1",
    ],
)
def test_drop_rates_are_of_the_tokens_that_did_not_arrive(flags):
    """Logged rates equal a recount at the experts of both ranks, with two micro-batches a step each (four
    with tp 2)."""
    ranks = run(2, trained, flags)
    rates = [line for line in ranks[0][0] if line.startswith("layer:")]
    arrived = np.sum([counts for *_, (counts, _) in ranks], axis=0)
    assert rates == [f"layer: 1, drop_rate: {1 - count / CHOICES:.5f}" for count in arrived[:2]]
    assert (arrived[:2] < CHOICES).all()
    assert not [line for line in ranks[1][0] if line.startswith("layer:")]


def test_what_another_capacity_would_drop_is_counted_micro_batch_by_micro_batch():
    """--moe-drop-rate-capacity-factor logs what that capacity would drop of each micro-batch, while nothing is dropped;
    losses are logged by layer, too."""
    ranks = run(2, trained, "--expert-model-parallel-size 2 --moe-drop-rate-capacity-factor 1.1")
    lines, metrics, _ = ranks[0]
    rates = [line for line in lines if line.startswith("layer:")]
    for step in range(2):
        counts = [row for *_, (_, chosen) in ranks for row in chosen[step]]
        assert np.shape(counts) == (4, 4) and np.sum(counts) == CHOICES
        beyond = np.maximum(np.array(counts) - np.ceil(CHOICES / 4 / 4 * 1.1), 0).sum() / CHOICES
        assert beyond > 0
        wanted = f"layer: 1, drop_rate: 0.00000, with capacity factor 1.1 it would be {beyond:.5f}"
        assert rates[step] == wanted
        assert metrics[step]["load_balancing_loss"] == metrics[step]["moe/load_balancing_loss_layer_1"] > 0.9
        assert metrics[step]["z_loss"] > 0 == metrics[step]["moe/z_loss_layer_0"]
    assert sum("load_balancing_loss: " in line for line in lines) >= 2
