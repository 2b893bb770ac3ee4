"""Writers to W&B, MLflow and SwanLab, which are not installed here: doubles with the signatures recorded of the real
ones."""

import sys
import threading
from contextlib import ExitStack
from functools import partial
from importlib.machinery import ModuleSpec
from inspect import Parameter, Signature
from types import ModuleType, SimpleNamespace
from unittest.mock import Mock, patch

import numpy as np

from parallel_core.step_figures import figures_of
from pynative.training.callbacks import writers
from tests.support.assets import recorded
from tests.support.distributed import run
from tests.support.engine import config_of
from tests.support.pretraining import BATCHES, listening, pretrain_tiny

FLAGS = "--mlflow-experiment curves --swanlab-project curves --wandb-project curves --wandb-exp-name first"


class Double:
    """A package's functions: a call that the real one would refuse raises TypeError; others are kept in `calls`, their
    threads in `threads`."""

    def __init__(self, package: str) -> None:
        self.calls: list[tuple[str, dict]] = []
        self.threads: set[int] = set()
        self.module = ModuleType(package)
        self.module.__spec__ = ModuleSpec(package, None)
        functions = recorded("writers.json")[package]["functions"]
        for name, parameters in functions.items():
            called = partial(self._called, name, _signature(parameters))
            setattr(self.module, name, called)
        if package == "wandb":
            methods = {name.removeprefix("Run."): getattr(self.module, name) for name in functions}
            self.module.init = lambda **given: (methods["init"](**given), SimpleNamespace(**methods))[1]

    def _called(self, name: str, signature: Signature, /, *given, **named) -> None:
        self.calls.append((name.removeprefix("Run."), signature.bind(*given, **named).arguments))
        self.threads.add(threading.get_ident())


def _signature(parameters: list) -> Signature:
    """The Signature of recorded parameters [name, kind, whether it may be left out]."""
    left_out = {True: None, False: Parameter.empty}
    return Signature(
        Parameter(name, kind, default=Parameter.empty if "VAR" in kind.name else left_out[may_be])
        for name, kind, may_be in ((name, getattr(Parameter, kind), may_be) for name, kind, may_be in parameters)
    )


def written(backend, folder: str) -> tuple[dict, list[str], list[float]]:
    """(package -> its calls, log lines, losses) of a training that writes to all three."""
    from pynative.training.callbacks import Callback

    doubles = {package: Double(package) for package in ("mlflow", "swanlab", "wandb")}
    losses = []

    class Seen(Callback):
        def on_step_end(self, state):
            losses.append(state.result.loss)

    with ExitStack() as stack, listening() as said:
        stack.enter_context(patch.dict(sys.modules, {name: double.module for name, double in doubles.items()}))
        flags = f"{BATCHES} {FLAGS} --train-iters 3 --save {folder} --save-interval 9"
        pretrain_tiny(backend, flags, callbacks=[Seen()])
    assert [len(double.threads) for double in doubles.values()] == [1] * 3, said  # MLflow has a run for each thread
    return {name: double.calls for name, double in doubles.items()}, said, losses


def test_each_program_gets_every_step_as_it_takes_it(tmp_path):
    """Each program is opened with the names that flags give, gets Megatron's tags with step and value, and is
    closed."""
    ((calls, said, losses),) = run(1, written, str(tmp_path))
    assert not [line for line in said if "nothing more is written" in line]
    names = {package: [name for name, _ in own] for package, own in calls.items()}
    assert names == {
        "mlflow": ["set_experiment", "start_run", "log_dict", *["log_metrics"] * 3, "end_run"],
        "swanlab": ["init", *["log"] * 3, "finish"],
        "wandb": ["init", *["log"] * 3, "finish"],
    }
    opened = {package: own[0][1] for package, own in calls.items()}
    assert opened["mlflow"] == {"experiment_name": "curves"}
    assert opened["swanlab"]["project"] == "curves" and f"{tmp_path}/swanlab" in str(opened["swanlab"])
    assert opened["wandb"]["name"] == "first" and opened["wandb"]["dir"] == f"{tmp_path}/wandb"
    assert calls["mlflow"][2][1]["artifact_file"] == "config.json"
    for package, values in (("mlflow", "metrics"), ("swanlab", "data"), ("wandb", "data")):
        points = [given for _, given in calls[package] if "step" in given]
        assert [given["step"] for given in points] == [1, 2, 3]
        assert [given[values]["lm loss"] for given in points] == losses
        assert {"learning-rate", "grad-norm", "batch-size", "loss-scale"} <= points[0][values].keys()
        samples = [given[values].get("consumed samples", given[values].get("samples vs steps")) for given in points]
        assert samples == [4, 8, 12]


def test_losses_by_layer_are_the_logs():
    """Curves of single layers are Megatron's (`track_moe_metrics`): of routers' losses, for every layer, and none of
    the indexer; none without --moe-per-layer-logging."""
    flags = (
        f"{BATCHES} --num-experts 2 --moe-layer-freq [0,1] --num-layers 2 --moe-z-loss-coeff 0.1 --enable-dsa-indexer "
        "--multi-latent-attention --kv-lora-rank 8 --position-embedding-type rope"
    )
    config = config_of(f"{flags} --moe-per-layer-logging", 1)
    figures = {figure.name: np.ones(figure.shape) for figure in figures_of(config.model_config)}
    figures["z_loss"] *= [0, 3]
    by_layer = {tag: y for tag, y in writers.points_of_layers(config, figures).items() if "layer" in tag}
    assert by_layer == {"moe/z_loss_layer_0": 0.0, "moe/z_loss_layer_1": 3.0}
    assert not [tag for tag in writers.points_of_layers(config_of(flags, 1), figures) if "layer" in tag]


def test_a_program_that_does_not_answer_holds_no_run_up():
    """A step queues its points or drops them; the end of the run waits for a moment only, raises nothing, and logs how
    much is missing."""
    begun, goes_on, stuck = threading.Event(), threading.Event(), Mock()
    stuck.write.side_effect = lambda points: (begun.set(), goes_on.wait(60))
    with patch.multiple(writers, MOST_WAITING=2, CLOSING_SECONDS=0.05), listening() as said:
        background = writers.Background("--wandb-project x", lambda: stuck)
        background.write(writers.Points(0, 0, {}, {}))
        assert begun.wait(60)
        for step in range(1, 10):
            background.write(writers.Points(step, step, {}, {}))
        background.close()
    goes_on.set()
    background.close()
    assert "has not written everything" in said[0] and "the points of 7 steps" in said[1]
    assert stuck.write.call_count == 3 and stuck.close.called and not background._thread.is_alive()
