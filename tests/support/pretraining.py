"""Runs of the training loop on a small model, inside a rank of a test's pool."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.engine import TINY, config_of, job
from tests.support.layouts import Rows

BATCHES = f"{TINY} --global-batch-size 4 --log-interval 1"


def pretrain_tiny(backend, flags: str, **arguments):
    """Run `pretrain` by these flags on GPTModel and Rows, or what `arguments` of pretrain replace; the final state."""
    from pynative.training.training import pretrain
    from pynative.transformer.gpt_model import GPTModel

    config = config_of(flags, backend.world_size)
    with job(backend, config):
        if "train_data_loader" not in arguments:
            arguments.setdefault("train_valid_test_datasets_provider", lambda samples: (Rows(), Rows(), None))
        arguments.setdefault("train_valid_test_datasets_provider", None)
        arguments.setdefault("model_provider_func", lambda **stage: GPTModel(config.model_config, **stage))
        return pretrain(all_config=config, **arguments)


def evaluated(backend, flags: str, **arguments) -> list[tuple[float | None, float]]:
    """(validation loss or None, training loss) of each step."""
    from pynative.training.callbacks import Callback

    found = []

    class Seen(Callback):
        def on_step_end(self, state):
            found.append((state.metrics.get("validation_loss"), state.result.loss))

    pretrain_tiny(backend, flags, callbacks=[Seen()], **arguments)
    return found


@contextmanager
def listening() -> Iterator[list[str]]:
    """A context that collects the project's log lines into the list that it yields."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logger = logging.getLogger("pynative")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield said
    finally:
        logger.removeHandler(handler)
