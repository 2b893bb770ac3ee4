"""The training loop: forward steps of either form, callbacks, logs, early ends, evaluation, bad models and loaders."""

import enum
import json
import logging
import re
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest

from parallel_core.config import ConfigError
from tests.support.corpus import write_corpus
from tests.support.distributed import run
from tests.support.engine import TINY, config_of
from tests.support.layouts import Rows
from tests.support.pretraining import BATCHES, evaluated, pretrain_tiny


def batches() -> list[dict[str, np.ndarray]]:
    """Batches of 4 samples, one a step, as dicts of a user's own loader."""
    rows = Rows()
    samples = [rows[i] for i in range(16)]
    return [{name: np.stack([s[name] for s in samples[i : i + 4]]) for name in samples[0]} for i in range(0, 16, 4)]


def losses_of(backend, form: str, flags: str) -> list[float]:
    """Losses of two steps by the default step on a loader of steps ("batch"), or by Megatron's forward step with two or
    three results (`form`)."""
    from pynative.training.callbacks import Callback

    losses = []

    class Losses(Callback):
        def on_step_end(self, state):
            losses.append(state.result.loss)

    def megatron(data_iterator, model):
        batch = {name: ms.Tensor(value) for name, value in next(data_iterator).items()}
        mask = batch["loss_mask"]

        def loss_func(output):
            if form == "two results":
                return output, {"lm loss": (float(output.asnumpy()) * mask.sum(), mask.sum())}
            count = mask.sum()
            return output * count, count, {"lm loss": (output.asnumpy() * count.asnumpy(), count)}

        return model(**batch), loss_func

    if form == "batch":
        pretrain_tiny(backend, flags, train_data_loader=batches(), callbacks=[Losses()])
    else:
        micro = [{n: v[i : i + 2] for n, v in batch.items()} for batch in batches() for i in (0, 2)]
        pretrain_tiny(backend, flags, train_data_loader=micro, forward_step_func=megatron, callbacks=[Losses()])
    return losses


@pytest.mark.parametrize(
    ("form", "averaging"),
    [("two results", ""), ("three results", ""), ("three results", "--calculate-per-token-loss")],
)
def test_megatrons_forward_step_equals_the_batch_function(form, averaging):
    """Two micro-batches with masks of different size have the default step's losses; the second step's depends on how
    gradients were averaged.

    A mean without its number of tokens (two results) cannot be averaged per token, in Megatron neither.
    """
    flags = f"{BATCHES} {averaging}"
    (expected,) = run(1, losses_of, "batch", flags)
    (found,) = run(1, losses_of, form, flags)
    np.testing.assert_allclose(found, expected, rtol=2e-6)


def logged(backend, out: str, flags: str) -> tuple[int, float]:
    """(last iteration, its loss) of a training with --save."""
    state = pretrain_tiny(backend, f"{flags} --save {out} --save-interval 100")
    return state.iteration, state.result.loss


def test_metrics_file_and_early_end(tmp_path):
    """metrics.jsonl has a line a step with the log's figures; --exit-interval ends the run with a checkpoint; all ranks
    report the same."""
    flags = f"{BATCHES} --train-iters 5 --exit-interval 3 --tensor-model-parallel-size 2"
    results = run(2, logged, str(tmp_path), flags)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3] and [r[0] for r in results] == [3, 3]
    assert rows[-1]["loss"] == results[0][1] == results[1][1]
    assert all(row["finite_grads"] and row["tokens_per_second"] > 0 and row["memory_mb"] > 50 for row in rows)
    assert (tmp_path / "latest_checkpointed_iteration.txt").read_text().strip() == "3"


@pytest.mark.parametrize("layout", ["", "--pipeline-model-parallel-size 2"])
def test_evaluation_is_a_forward_without_dropout(layout):
    """The first validation loss is that of training on the same rows without dropout; the training's losses are as
    without evaluation."""
    world = 2 if layout else 1
    dropout = f"{TINY} --global-batch-size 4 --hidden-dropout 0.3 --train-iters 3 --lr 0 {layout}"
    with_evaluation = run(world, evaluated, f"{dropout} --eval-interval 1 --eval-iters 1")
    without = run(world, evaluated, f"{dropout} --eval-iters 0")
    plain = run(1, evaluated, f"{TINY} --global-batch-size 4 --lr 0 --eval-iters 0")
    assert [loss for _, loss in with_evaluation[0]] == [loss for _, loss in without[0]]
    assert with_evaluation[-1][0][0] == pytest.approx(plain[0][0][1], rel=1e-6)
    assert with_evaluation[0][0][0] != with_evaluation[0][0][1]


class Validation(Rows):
    """The training rows in reverse order, so that their loss is another."""

    def __getitem__(self, i: int) -> dict[str, np.ndarray]:
        return super().__getitem__(15 - i)


def validated(backend, source: str) -> tuple[list[float | None], str]:
    """(validation losses of two steps, log) with a script's training loader, and validation data from `source`:
    "loader", "provider" or "nothing"."""
    reversed_rows = [{name: array[::-1] for name, array in batch.items()} for batch in reversed(batches())]
    arguments = {
        "loader": {"valid_data_loader": reversed_rows},
        "provider": {"train_valid_test_datasets_provider": lambda samples: (None, Validation(), None)},
        "nothing": {},
    }[source]
    flags = f"{BATCHES} --eval-interval 1 --eval-iters 2 --lr 0"
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append
    logging.getLogger("pynative").addHandler(handler)
    try:
        found = evaluated(backend, flags, train_data_loader=batches(), **arguments)
    finally:
        logging.getLogger("pynative").removeHandler(handler)
    return [loss for loss, _ in found], "\n".join(record.getMessage() for record in records)


def test_evaluation_beside_a_training_loader():
    """Validation data come from valid_data_loader or the provider; without either one log line says that there is no
    evaluation."""
    (of_loader, log), (of_provider, _) = run(1, validated, "loader")[0], run(1, validated, "provider")[0]
    assert of_loader == of_provider and None not in of_loader and of_loader[0] != of_loader[1]
    assert "No evaluation" not in log
    nothing, log = run(1, validated, "nothing")[0]
    assert nothing == [None, None] and log.count("No evaluation: --eval-interval 1 and --eval-iters 2") == 1


def cyclic(backend) -> int:
    """The last iteration of a training of more steps than a list of batches has; a MindSpore dataset of them is checked
    to give the same loss."""
    state = pretrain_tiny(backend, f"{BATCHES} --train-iters 6", train_data_loader=batches())
    columns = list(batches()[0])
    dataset = ms.dataset.GeneratorDataset(lambda: (tuple(b[c] for c in columns) for b in batches()), columns)
    other = pretrain_tiny(backend, f"{BATCHES} --train-iters 6", train_data_loader=dataset)
    assert state.result.loss == other.result.loss
    return state.iteration


def test_a_loader_starts_again_and_may_be_mindspores():
    """A list of batches and a MindSpore dataset start again when they end, and give the same run."""
    assert run(1, cyclic) == [6]


class EncoderDecoder(enum.Enum):
    """One of Megatron's model types that cannot be trained here."""

    encoder_and_decoder = 2


class NoInputTensor(ms.nn.Cell):
    """A model without set_input_tensor, which cannot be a pipeline stage."""


MISTAKES = {
    "exhausted": ({"train_data_loader": iter(batches())}, "--train-iters 6", "data ended before --train-iters"),
    "empty": ({"train_data_loader": []}, "", "the training data ended"),
    "empty validation": (
        {"train_data_loader": batches(), "valid_data_loader": []},
        "--eval-interval 1 --eval-iters 2",
        "the validation data ended before --eval-iters",
    ),
    "no data": ({"train_valid_test_datasets_provider": None}, "", "train_valid_test_datasets_provider or"),
    "model": ({"model_provider_func": lambda **stage: NoInputTensor()}, "", "set_input_tensor"),
    "model type": ({"model_type": EncoderDecoder.encoder_and_decoder}, "", "only a decoder"),
    "rows": ({"train_data_loader": [{"tokens": np.zeros((3, 16), np.int32)}]}, "", "3 rows"),
    "non-loss": ({"process_non_loss_data_func": print}, "", "process_non_loss_data_func"),
}


def mistake(backend, name: str) -> str:
    """The error text of pretrain with one of MISTAKES."""
    arguments, flags, _ = MISTAKES[name]
    try:
        pretrain_tiny(backend, f"{BATCHES} {flags}", **arguments)
    except (ValueError, ConfigError) as error:
        return str(error)
    return "accepted"


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_named(name):
    """Each of MISTAKES in a script's call of pretrain is an error in the script's own terms."""
    assert MISTAKES[name][2] in run(1, mistake, name)[0]


def blown_up(backend, flags: str) -> str:
    """The error text of training with a learning rate of 1e30, or that it finished and whether the norm was finite."""
    try:
        state = pretrain_tiny(backend, f"{BATCHES} --lr 1e30 --clip-grad 0 --train-iters 4 {flags}")
    except FloatingPointError as error:
        return str(error)
    return f"finished, finite: {state.result.is_finite}"


def test_a_loss_that_is_no_number_stops_the_run():
    """A NaN loss ends the run, recomputing the step to say where it comes from unless --rerun-mode disabled;
    --no-check-for-nan-in-loss-and-grad skips updates instead."""
    assert re.match(r"iteration \d: loss nan, gradient norm nan: not finite.* --lr", run(1, blown_up, "")[0])
    (said,) = run(1, blown_up, "--rerun-mode disabled")
    assert re.match(r"rank 0: the gradient of .* not finite in iteration .* --lr", said)
    assert run(1, blown_up, "--no-check-for-nan-in-loss-and-grad") == ["finished, finite: False"]


def on_one_document(backend, folder: Path) -> list:
    """Validation and training losses of a training on one document, which the split leaves to training."""
    from parallel_core.data.datasets import datasets_provider

    prefix = write_corpus(folder / "one", [200], 60)
    flags = f"{BATCHES} --data-path {prefix} --split 95,5,0 --train-iters 2"
    return evaluated(backend, flags, train_valid_test_datasets_provider=datasets_provider(config_of(flags, 1)))


def test_without_an_evaluation_an_empty_validation_split_is_no_error(tmp_path):
    """With --eval-iters 0 nothing is looked for in a validation split that has no document."""
    (losses,) = run(1, on_one_document, tmp_path)
    assert len(losses) == 2 and all(valid is None for valid, _ in losses)
