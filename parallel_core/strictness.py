"""The handling of names that only the model or only the checkpoint has, and of settings that describe another network
in the checkpoint (--dist-ckpt-strictness)."""

from typing import NamedTuple


class Strictness(NamedTuple):
    """The names for which a load is refused or that it logs: those that only the model has ("absent") and those that
    only the checkpoint has ("unused"). Names that are neither refused nor logged are skipped silently. If absent names
    are refused, --load also refuses settings that describe another network; else it logs them. Megatron calls absent
    names "unexpected" and unused ones "missing"."""

    refuses_absent: bool
    """Whether names that the model has and the checkpoint lacks are refused, and settings that describe another
    network. False: such parameters keep their initial values, and such settings are logged."""
    refuses_unused: bool
    """Whether names that the checkpoint has and the model lacks are refused."""
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
"""Value of --dist-ckpt-strictness (Megatron's) -> handling. Those that return names to the caller log them: a training
run has no use for them."""
