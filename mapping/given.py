"""A value that a user gave: by a flag, a key of a configuration file, or an attribute of the arguments."""

from __future__ import annotations

from typing import Any, NamedTuple

from mapping.flags import IGNORED, MAPPED, ROWS, Flag

NO_FLAG = Flag("", None)
"""The row of a key that no flag says."""


class Given(NamedTuple):
    """One value and where it goes: into the argument of a flag, straight into a config field, or nowhere."""

    name: str
    """As the user wrote it: `--seed`, `train_batch_size`, `model_config.num_layers`, `args.lr`."""
    value: Any
    row: Flag = NO_FLAG
    """The flag that says the same, if there is one; else the value goes into `field`."""
    field: str = ""
    """The path of the config field that a file's key fills without the flag's derivation."""
    source: str = ""
    """The configuration file; empty for the command line."""
    reason: str = ""
    """Why the key of a file does nothing, or fills a field that changes no result."""

    @property
    def target(self) -> str:
        """The config field that it fills, or that is derived from it; empty if there is none."""
        return self.field or self.row.target

    @property
    def status(self) -> str:
        """What becomes of it: mapped, ignored or refused."""
        return IGNORED if self.reason else self.row.status

    @property
    def replaced(self) -> str:
        """The sentence about what is taken for the value, where another stands for it; empty if it acts."""
        return self.row.stands_for.get(self.value, "") if isinstance(self.value, str) else ""


ROW_OF: dict[str, Flag] = {}
"""Attribute of the argument namespace -> the row that fills it, one that acts if there is one."""
for _row in ROWS:
    if _row.dest not in ROW_OF or (_row.status == MAPPED != ROW_OF[_row.dest].status):
        ROW_OF[_row.dest] = _row

OTHER_NAMES = {
    "layernorm_epsilon": "norm_epsilon",
    "layernorm_zero_centered_gamma": "apply_layernorm_1p",
    "bucket_size": "ddp_bucket_size",
    "profile_memory": "profile_with_memory",
    "virtual_pipeline_model_parallel_size_ms": "virtual_pipeline_model_parallel_size",
}
"""Attributes of other parsers -> the name here."""
