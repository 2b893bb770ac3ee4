"""The times by which a run orders its pipeline's computations."""

from parallel_core.config import AllConfig
from parallel_core.planner.plan import Plan
from parallel_core.schedules import TIMED
from parallel_core.schedules.simulate import Durations


def times_of_run(config: AllConfig) -> Durations | None:
    """The plan's times on the device of --plan-device; None if no device is named, or the schedule takes no times.
    Raises ConfigError for a device that `find_device` refuses, if the schedule takes times.

    They follow from the configuration and the device's description alone, also in a run of a script's own model.
    """
    named = config.training_config.log.plan_device
    return Plan.of_run(config).step.times if named and config.parallel_config.schedule_name in TIMED else None
