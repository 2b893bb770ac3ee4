"""Messages of a run, by default on standard output, each behind its level, as "INFO - ..."."""

import atexit
import logging
import sys
from collections.abc import Callable

from parallel_core.system.terminal import Screen


class ScreenHandler(logging.Handler):
    """Log handler that writes to standard output; on a terminal a step's line is a progress line, overwritten by the
    next (`parallel_core.system.terminal.Screen`)."""

    def __init__(self) -> None:
        super().__init__()
        self._screen = Screen(sys.stdout)
        atexit.register(self._screen.close)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record's line; an error of the stream does not end the training."""
        try:
            self._screen.write(self.format(record))
        except Exception:
            self.handleError(record)


def _logger() -> logging.Logger:
    logger = logging.getLogger("pynative")
    if not logger.handlers:
        handler = ScreenHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s - %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
    return logger


def log(message: str) -> None:
    """Log a message of level INFO: by default the `ScreenHandler` gets "INFO - <message>" to write."""
    _logger().info(message)


def warn(message: str) -> None:
    """Log a message of level WARNING: by default the `ScreenHandler` gets "WARNING - <message>" to write."""
    _logger().warning(message)


class HeardWarnings(logging.Handler):
    """A log handler that calls `hear` with the text of each message of level WARNING and above of the log that `warn`
    writes to, from when it is made until it is closed."""

    def __init__(self, hear: Callable[[str], object]) -> None:
        super().__init__(logging.WARNING)
        self._hear = hear
        _logger().addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Call `hear` with the text of a record's message."""
        self._hear(record.getMessage())

    def close(self) -> None:
        """Stop hearing warnings."""
        _logger().removeHandler(self)
        super().close()
