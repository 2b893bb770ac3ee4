"""Where messages go: standard output, one line each, as "INFO - ..."."""

import logging
import sys


def _logger() -> logging.Logger:
    logger = logging.getLogger("pynative")
    if not logger.handlers:
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(logging.Formatter("%(levelname)s - %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
    return logger


def log(message: str) -> None:
    """One line of information."""
    _logger().info(message)


def warn(message: str) -> None:
    """One line that the reader should not miss."""
    _logger().warning(message)
