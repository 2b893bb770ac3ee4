"""Start of a script on several processes of this host with msrun, from Python."""

import os
import shutil
import socket
import sys
from collections.abc import Sequence
from pathlib import Path


def free_port() -> int:
    """The number of a TCP port that was free at 127.0.0.1 just now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def msrun_command(script: str | Path, arguments: Sequence[str], processes: int, log_dir: str | Path) -> list[str]:
    """The msrun command line that runs `script` in `processes` ranks on this host and waits for them; rank r's output
    goes to msrun's output and to `log_dir`/worker_r.log. Raises FileNotFoundError where msrun is neither beside this
    Python nor on the PATH."""
    beside_python = Path(sys.executable).with_name("msrun")
    msrun = str(beside_python) if beside_python.exists() else shutil.which("msrun")
    if msrun is None:
        raise FileNotFoundError("msrun, which MindSpore installs, is not on the PATH: activate its environment")
    return [
        msrun,
        f"--worker_num={processes}",
        f"--local_worker_num={processes}",
        f"--master_port={free_port()}",
        f"--log_dir={log_dir}",
        "--join=True",
        str(script),
        *arguments,
    ]


def quiet_environment() -> dict[str, str]:
    """A copy of this process's environment in which MindSpore's C++ log shows errors alone, unless GLOG_v is set."""
    return {"GLOG_v": "3", **os.environ}
