"""Values that were given: by a flag, a key of a configuration file, an attribute of the arguments, or a checkpoint."""

from collections.abc import Callable
from typing import Any, NamedTuple

from mapping.flags import IGNORED, MAPPED, ROWS, Flag
from mapping.flags.notations import parts
from parallel_core.config.tree import path_of

NO_FLAG = Flag("", None)
"""The row of a key of a file that no flag stands for."""


class Demand(NamedTuple):
    """A demand that a file's key, with this value, makes on a config field (the end of its path) without filling it:
    `is_met` says whether the field's value (0 in place of None, false and empty ones) meets it; if not, `rule`, in
    which {} stands for that value, and `fix` are the finding's."""

    value: Any
    """The value of the key."""
    field: str
    """The end of the field's path."""
    is_met: Callable[[Any], bool]
    """Test of the field's value (0 in place of None, false and empty ones): whether it meets the demand."""
    rule: str
    """The rule that is broken if the demand is not met; {} stands for the field's value."""
    fix: str
    """The change to make then."""


class Given(NamedTuple):
    """A value that was given, and where it goes: into the argument of a flag (`row`), straight into a config field
    (`field`, its path), or nowhere. source: the file, or the checkpoint's folder, "" for others; reason: why it does
    nothing; demand: the demand of a key that fills no field; is_default: whether it is a default, which a file writes
    out or implies."""

    name: str
    """The name as the user wrote it: `--seed`, `train_batch_size`, `model_config.num_layers`, `args.lr`; for a
    checkpoint's value that of its option."""
    value: Any
    row: Flag = NO_FLAG
    """The row of the flag that means the same, or NO_FLAG."""
    field: str = ""
    """Path of the config field that a file's key fills without the flag's derivation; "": none."""
    source: str = ""
    """The configuration file, or the checkpoint's folder; "" for others."""
    reason: str = ""
    """The reason why the value does nothing, or fills a field that changes no result; "": none."""
    demand: Demand | None = None
    """The demand of a key of a file that fills no field; None: it makes none."""
    is_default: bool = False
    """Whether the value is a default, which a file writes out or its other keys imply; a key of the file that gives the
    same another value wins over it."""

    @property
    def target(self) -> str:
        """Path of the config field that the value is for: `field`, else the row's, even of an ignored flag; "" if there
        is none."""
        return self.field or self.row.target

    @property
    def status(self) -> str:
        """The outcome: ignored if there is a `reason`, else the status of `row`: mapped, ignored or refused."""
        return IGNORED if self.reason else self.row.status

    @property
    def words(self) -> str | float | None:
        """The value for a message: a list's parts as text, with spaces between; a number as it is; None for None, true
        and false; anything else as text."""
        if self.value is None or isinstance(self.value, bool):
            return None
        if isinstance(self.value, int | float):
            return self.value
        return " ".join(map(str, parts(self.value)))

    @property
    def says_nothing(self) -> bool:
        """Whether the value asks for nothing: None, or the default of `row` if that takes a value, as
        `--lr-warmup-iters 0`."""
        return self.value is None or (self.row.type is not None and self.value == self.row.default)

    @property
    def replaced(self) -> str:
        """The sentence about the value that is taken instead of this one (`Flag.stands_for`); "" if none is."""
        return self.row.stands_for.get(self.value, "") if isinstance(self.value, str) else ""

    def replaces(self, other: "Given") -> bool:
        """Whether only one of this and `other` can count: they are for the same argument or the same field, and neither
        flag completes the other (`Flag.completes`)."""
        names = {name for name in (self.target, self.row.dest) if name}
        if names.isdisjoint((other.target, other.row.dest)):
            return False
        return self.row.name not in other.row.completes and other.row.name not in self.row.completes


ROW_OF: dict[str, Flag] = {}
"""Attribute of the argument namespace -> the row that fills it, if possible one that acts."""
for _row in ROWS:
    if _row.dest not in ROW_OF or (_row.status == MAPPED != ROW_OF[_row.dest].status):
        ROW_OF[_row.dest] = _row

PARTS_OF = {path_of("betas"): ("adam_beta1", "adam_beta2")}
"""Path of a field -> the arguments that make its parts, each by a flag of its own."""

OTHER_NAMES = {
    "layernorm_epsilon": "norm_epsilon",
    "layernorm_zero_centered_gamma": "apply_layernorm_1p",
    "bucket_size": "ddp_bucket_size",
    "profile_memory": "profile_with_memory",
    "virtual_pipeline_model_parallel_size_ms": "virtual_pipeline_model_parallel_size",
}
"""Attribute in other parsers' namespaces -> its name here."""
