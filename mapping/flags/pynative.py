"""Flags: pynative, our own."""

from mapping.flags.flag import group, value

FLAGS = group(
    "pynative",
    value("--device-target", str, "CPU", "parallel_config.device_target", choices=("CPU", "Ascend")),
    value("--kernels", str, None, "parallel_config.kernels", choices=("host", "ops")),
    value("--collectives", str, None, "parallel_config.collectives", choices=("shared_memory", "native")),
    value("--threads", int, None, "parallel_config.threads"),
    value("--yaml-cfg", str, None, "", "A configuration file that holds what flags would say."),
    value("--deepspeed-config", str, None, "", "A DeepSpeed configuration file: batch sizes, precision, optimizer."),
)
