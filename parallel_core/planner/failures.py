"""Failures of devices: how often a job should save, and how much of its time brings training on.

Young, "A First Order Approximation to the Optimum Checkpoint Interval" (1974); Daly, "A Higher Order Estimate of the
Optimum Checkpoint Interval for Restart Dumps" (2006), equations 20 and 37.
"""

from dataclasses import dataclass
from math import exp, expm1, sqrt


@dataclass(frozen=True)
class Reliability:
    """Seconds between a job's failures (a mean, `between_failures`), seconds of training between two checkpoints
    (`interval`), and the part of the wall time that training keeps (`goodput`)."""

    between_failures: float
    """Mean time between two failures of any of the job's devices."""
    interval: float
    """Seconds of training between two checkpoints with which the expected wall time is about least."""
    goodput: float
    """The part of the wall time that training keeps: neither saving nor restarting nor lost to a failure."""

    def __str__(self) -> str:
        hours, minutes = self.between_failures / 3600, self.interval / 60
        return (
            f"a failure every {hours:,.1f} hours: save every {minutes:,.1f} minutes, "
            f"so that {self.goodput:.1%} of the time brings training on"
        )


def best_interval(between_failures: float, save: float) -> float:
    """Seconds of training between two checkpoints with about the least expected wall time (Daly's equation 37). All
    times in seconds: the mean between two failures, and that of a save."""
    if save >= 2 * between_failures:
        return between_failures
    ratio = save / (2 * between_failures)
    return sqrt(2 * save * between_failures) * (1 + sqrt(ratio) / 3 + ratio / 9) - save


def goodput(between_failures: float, save: float, restart: float, interval: float) -> float:
    """Training time divided by expected wall time, failures coming at random, during saves and restarts as well (Daly's
    equation 20); 0 where that is negligible. All times in seconds: the mean between two failures, those of a save and a
    restart, and the training between two checkpoints."""
    exponent = (interval + save) / between_failures
    if exponent + restart / between_failures > 700:
        return 0.0
    return interval / (between_failures * exp(restart / between_failures) * expm1(exponent))


def reliability(between_failures: float, save: float, restart: float) -> Reliability:
    """The interval of `best_interval` and its goodput, from the mean time between failures of the job and the times of
    a save and a restart, in seconds; the first two must be above 0."""
    interval = best_interval(between_failures, save)
    return Reliability(between_failures, interval, goodput(between_failures, save, restart, interval))
