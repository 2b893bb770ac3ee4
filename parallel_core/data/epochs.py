"""The number of iterations of passes over the data (--num_train_epochs), which a schedule has to know beforehand."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from parallel_core.config import AllConfig
from parallel_core.config.base import Unjudged, gather_findings
from parallel_core.config.serialise import build
from parallel_core.config.tree import path_of
from parallel_core.findings import Finding

_FLAG = "--num_train_epochs"
_EPOCHS, _ITERATIONS, _SAMPLES = map(path_of, ("epochs", "training_iters", "train_samples"))


class Length(NamedTuple):
    """The length of a training that is given in epochs, as options of the config. values: path of an option -> its
    value; findings: that the length cannot be known or is less than one iteration; notes: sentences that say how it was
    found; reasons: path of an option -> why it does nothing."""

    values: dict[str, int] = {}  # noqa: RUF012
    """Path of an option -> its value."""
    findings: tuple[Finding, ...] = ()
    """The finding that the length cannot be known, or is less than one iteration; else empty."""
    notes: tuple[str, ...] = ()
    """Sentences that say how the number of iterations was found."""
    reasons: dict[str, str] = {}  # noqa: RUF012
    """Path of an option -> why it does nothing."""


def length_of_training(values: Mapping[str, Any], samples: int | None = None) -> Length:
    """The length of a training of --num_train_epochs. Empty if that is not given or not above 0, or depends on an
    option that was refused (`Unknown`); with --train-iters or --train-samples above 0 only the reason why it does
    nothing. A finding alone if counting the samples fails (ValueError, OSError), if named data have no samples or an
    unknown number and --max_train_samples is not given, or if the length is less than one iteration. Empty, too, if
    counting finds no number and neither data for training nor --max_train_samples is named: a script may bring data.

    values: path of an option -> its value. samples: the number of one epoch's samples; None or 0: it is counted in the
    data files."""
    with suppress(Unjudged):
        epochs = values.get(_EPOCHS)
        if epochs is None or epochs <= 0:
            return Length()
        if values.get(_ITERATIONS) or values.get(_SAMPLES):
            return Length(reasons={_EPOCHS: "no effect: --train-iters and --train-samples go before it"})
        with gather_findings():
            return _counted(epochs, build(values), samples)
    return Length()


def _counted(epochs: float, config: AllConfig, known: int | None) -> Length:
    from parallel_core.data.datasets import samples_per_epoch

    try:
        samples = known or samples_per_epoch(config)
    except (OSError, ValueError) as error:
        return Length(findings=(Finding(_FLAG, epochs, f"needs the length of the data: {error}", "mend that"),))
    if samples is None and not _names_data(config):
        return Length()  # The script's own loader may know the length.
    limits = [number for number in (samples, config.dataset_config.max_train_samples) if number]
    if not limits:
        rule = "needs the length of the data, which files of --data-path without weights or --max_train_samples say"
        return Length(findings=(Finding(_FLAG, epochs, rule, "give --train-iters"),))
    batch = config.dataset_config.global_batch_size
    iterations = int(epochs * min(limits)) // batch
    sum = f"{epochs:g} x {min(limits)} samples / --global-batch-size {batch}"
    if not iterations:
        return Length(findings=(Finding(_FLAG, epochs, f"{sum} is less than one iteration", "raise it"),))
    return Length({_ITERATIONS: iterations}, notes=(f"{_FLAG} {epochs:g}: {sum} = --train-iters {iterations}",))


def _names_data(config: AllConfig) -> bool:
    data = config.dataset_config
    return bool(data.mock_data or data.data_path or data.train_data_path or data.max_train_samples)
