"""The command-line flags as data: Megatron-LM's, MindSpeed's, MindSpeed-LLM's, and some of other programs.

`with_option`: the flags of the config's options, and further flags that fill an option. `without_option`: flags that
have no option of their own, and are ignored or refused. `FILES`: flags that name configuration files.
"""

from pathlib import Path

from mapping.flags import without_option
from mapping.flags.flag import IGNORED, MAPPED, REFUSED, Flag, group, value
from mapping.flags.with_option import TABLES

FILES = group(
    "Configuration files",
    (
        value(
            "--yaml-cfg=str",
            help="A configuration file, of this project, Megatron or MindFormers, that holds what flags would say.",
        ),
        value(
            "--deepspeed-config|--deepspeed_config=str",
            help="A DeepSpeed configuration file: batch sizes, precision, optimizer.",
        ),
        value(
            "--deepspeed=str*",
            help="With a file: HuggingFace's name of --deepspeed-config. Without a value: DeepSpeed's switch beside "
            "--deepspeed-config, which changes nothing.",
        ),
        value(
            "--fsdp2-config-path=str",
            help="MindSpeed's file for --use-torch-fsdp2: types, offload, recomputation.",
            idle=(
                lambda args: not Path(args.fsdp2_config_path).is_file(),
                "there is no such file here; a run does not start without it",
            ),
        ),
    ),
)
"""The rows of flags that name configuration files."""

GROUPS: tuple[tuple[Flag, ...], ...] = (*TABLES, FILES, *without_option.TABLES)
"""The rows under their headings: flags of options and of files, then those of `without_option`."""

ROWS: tuple[Flag, ...] = tuple(row for rows in GROUPS for row in rows)
"""All rows, in the order of the reference page."""

BY_NAME: dict[str, Flag] = {name: row for row in ROWS for name in (row.name, *row.aliases)}
"""Name or other name of a flag -> its row."""
