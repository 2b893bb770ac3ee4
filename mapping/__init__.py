"""The way from a user's request - Megatron flags, YAML, JSON - to config objects. Importing this package starts nothing
and needs no device."""

from mapping.arguments import (
    exit_on_mistakes,
    get_args,
    init_configs_from_args,
    init_configs_from_dict,
    init_configs_from_yaml,
    initialize_megatron,
    parse_args,
    set_args,
    set_global_args,
)
from parallel_core import __version__
from parallel_core.config import ConfigError
