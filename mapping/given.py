"""A value that a user gave: by a flag, a key of a configuration file, or an attribute of the arguments."""

from collections.abc import Callable
from typing import Any, NamedTuple

from mapping.flags import IGNORED, MAPPED, ROWS, Flag
from mapping.flags.notations import parts
from parallel_core.config.tree import path_of

NO_FLAG = Flag("", None)
"""The row of a key that no flag says."""


class Demand(NamedTuple):
    """A demand that the key of a file makes of a config field, which it does not fill."""

    value: Any
    """Value of the key."""
    field: str
    """The end of the field's path."""
    is_met: Callable[[Any], bool]
    """Whether the field's value, 0 where there is none, meets the demand."""
    rule: str
    """The rule that the key breaks if the demand is not met; {} stands for the field's value."""
    fix: str


class Given(NamedTuple):
    """One value and where it goes: into the argument of a flag, straight into a config field, or nowhere."""

    name: str
    """The name as the user wrote it: `--seed`, `train_batch_size`, `model_config.num_layers`, `args.lr`."""
    value: Any
    row: Flag = NO_FLAG
    """The flag that says the same, if there is one; else the value goes into `field`."""
    field: str = ""
    """The path of the config field that a file's key fills without the flag's derivation."""
    source: str = ""
    """The configuration file; empty for the command line."""
    reason: str = ""
    """Why the key of a file does nothing, or fills a field that changes no result."""
    demand: Demand | None = None
    """The demand of a key of a file that fills no field."""
    is_default: bool = False
    """Whether the key's value is the default, beside which another key's value counts."""

    @property
    def target(self) -> str:
        """The config field that it fills, or that is derived from it; empty if there is none."""
        return self.field or self.row.target

    @property
    def status(self) -> str:
        """Its outcome: mapped, ignored or refused."""
        return IGNORED if self.reason else self.row.status

    @property
    def words(self) -> str | float | None:
        """The value as it is typed; none for a switch."""
        if self.value is None or isinstance(self.value, bool):
            return None
        if isinstance(self.value, int | float):
            return self.value
        return " ".join(map(str, parts(self.value)))

    @property
    def says_nothing(self) -> bool:
        """Whether it asks for nothing, as `--lr-warmup-iters 0` does."""
        return self.value is None or (self.row.type is not None and self.value == self.row.default)

    @property
    def replaced(self) -> str:
        """The sentence about what is taken for the value, where another stands for it; empty if it acts."""
        return self.row.stands_for.get(self.value, "") if isinstance(self.value, str) else ""

    def replaces(self, other: "Given") -> bool:
        """Whether only one of both can count: they fill the same argument or the same field."""
        names = {name for name in (self.target, self.row.dest) if name}
        if names.isdisjoint((other.target, other.row.dest)):
            return False
        return self.row.name not in other.row.completes and other.row.name not in self.row.completes


ROW_OF: dict[str, Flag] = {}
"""Attribute of the argument namespace -> the row that fills it, one that acts if there is one."""
for _row in ROWS:
    if _row.dest not in ROW_OF or (_row.status == MAPPED != ROW_OF[_row.dest].status):
        ROW_OF[_row.dest] = _row

PARTS_OF = {path_of("betas"): ("adam_beta1", "adam_beta2")}
"""Path of a field -> the arguments that make it together, of which a flag may say one."""

OTHER_NAMES = {
    "layernorm_epsilon": "norm_epsilon",
    "layernorm_zero_centered_gamma": "apply_layernorm_1p",
    "bucket_size": "ddp_bucket_size",
    "profile_memory": "profile_with_memory",
    "virtual_pipeline_model_parallel_size_ms": "virtual_pipeline_model_parallel_size",
}
"""Attributes of other parsers -> the name here."""
