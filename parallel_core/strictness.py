"""The handling of names that a model and a checkpoint do not share, and of settings by which they are two networks
(--dist-ckpt-strictness)."""

from typing import NamedTuple


class Strictness(NamedTuple):
    """Whether a load is refused, and what is logged; what is neither is skipped without a word.

    Megatron calls a name "unexpected" that the model has and the checkpoint lacks, the others "missing".
    """

    refuses_absent: bool
    """Names that the model has and the checkpoint lacks. Otherwise such parameters keep their initial values. And
    settings by which they are two networks, which are otherwise logged."""
    refuses_unused: bool
    """Names that the checkpoint has and the model lacks."""
    logs_absent: bool = False
    logs_unused: bool = False


STRICTNESS = {
    "assume_ok_unexpected": Strictness(True, False),
    "log_unexpected": Strictness(False, False, logs_absent=True),
    "log_all": Strictness(False, False, logs_absent=True, logs_unused=True),
    "raise_unexpected": Strictness(True, False),
    "raise_all": Strictness(True, True),
    "return_unexpected": Strictness(False, False, logs_absent=True),
    "return_all": Strictness(False, False, logs_absent=True, logs_unused=True),
    "ignore_all": Strictness(False, False),
}
"""Megatron's names. Those that return names to the caller log them: a training run has no use for them."""
