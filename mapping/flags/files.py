"""Flags that name configuration files."""

from mapping.flags.flag import group, value

FILES = group(
    "Configuration files",
    (
        value("--yaml-cfg", str, help="A configuration file that holds what flags would say."),
        value("--deepspeed-config", str, help="A DeepSpeed configuration file: batch sizes, precision, optimizer."),
    ),
)
