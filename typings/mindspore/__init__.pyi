"""The part of MindSpore that our classes derive from; it has no types of its own. All else is of any type."""

from typing import Any

from mindspore import nn as nn

def __getattr__(name: str) -> Any: ...
