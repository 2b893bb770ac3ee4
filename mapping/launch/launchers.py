"""A launcher's command line in msrun's terms: torchrun, deepspeed, srun and msrun itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from parallel_core.findings import Finding, Setting

UNSET = "the script's variable for it is empty: set it in the environment, or give the script its arguments"
OPEN = "?"
"""The stand-in, in a printed command, for a value that is not known."""


@dataclass
class Launch:
    """A launch in msrun's terms: its options (name -> value), the program and its arguments; findings about values that
    are missing or wrong, and the launcher's options with a value that are left out."""

    options: dict[str, str]
    program: str
    arguments: list[str]
    unresolved: list[Finding] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


class Grammar(NamedTuple):
    """The options of a launcher, by names with _ for -. One that is not listed takes one value and is left out. acting:
    names, with spaces between, of those that msrun's options follow from, with one value each; switches: names of those
    without a value; letters: letter of a short option -> its name."""

    acting: str
    switches: str = ""
    """Names, with spaces between, of options without a value, which change nothing."""
    letters: Mapping[str, str] = {}


TORCHRUN = Grammar(
    "nproc_per_node nnodes node_rank master_addr master_port rdzv_endpoint log_dir", "standalone use_env"
)
DEEPSPEED = Grammar(
    "num_gpus num_nodes include node_rank master_addr master_port",
    "force_multi no_local_rank no_ssh no_ssh_check save_pid bind_cores_to_rank",
    {"i": "include"},
)
SRUN = Grammar(
    "nodes ntasks ntasks_per_node",
    "label l unbuffered u verbose v quiet Q oversubscribe s overcommit O exclusive kill_on_bad_exit K overlap pty "
    "wait_all_nodes contiguous no_container_mount_home container_writable container_remap_root no_container_entrypoint",
    {"N": "nodes", "n": "ntasks"},
)
MSRUN = Grammar(
    "worker_num local_worker_num master_addr master_port node_rank log_dir join cluster_time_out bind_core bind_numa "
    "sim_level sim_rank_id rank_table_file worker_log_name tail_worker_log"
)


def take_apart(words: Sequence[str], grammar: Grammar) -> tuple[dict[str, str], Launch]:
    """(The launcher's own options that act, name -> value, of two the last; the rest as a launch with empty `options`:
    program ("" if there is none), arguments, findings about options without a value, options left out)."""
    rest, options, launch = list(words), {}, Launch({}, "", [])
    while rest and rest[0].startswith("-") and len(rest[0]) > 1:
        if rest[0] == "--":  # the end of the options
            rest.pop(0)
            break
        flag, name, value = _option(rest.pop(0), grammar)
        if name in grammar.switches.split():
            continue
        if value is None and (not rest or rest[0].startswith("--")):
            launch.unresolved.append(Finding(flag, None, "has no value", UNSET))
            continue
        value = rest.pop(0) if value is None else value
        if name in grammar.acting.split():
            options[name] = value
        else:
            launch.left_out.append(flag)
    launch.program, *launch.arguments = rest or [""]
    return options, launch


def _option(word: str, grammar: Grammar) -> tuple[str, str, str | None]:
    """An option as it is written, its name with underscores, and the part of its value in the same word (None: there is
    none)."""
    if word.startswith("--"):
        flag, equals, value = word.partition("=")
        return flag, flag.lstrip("-").replace("-", "_"), value if equals else None
    return word[:2], grammar.letters.get(word[1], word[1]), word[2:] or None


def torchrun(words: Sequence[str], environment: Mapping[str, str]) -> Launch:
    """The launch of `torchrun`, `python -m torch.distributed.run` or `.launch`, by the words behind it. environment:
    not read."""
    options, launch = take_apart(words, TORCHRUN)
    address, _, port = options.get("rdzv_endpoint", "").partition(":")
    return _on_hosts(
        launch,
        processes=Setting("--nproc_per_node", options.get("nproc_per_node", "1")),
        hosts=Setting("--nnodes", options.get("nnodes", "1")),
        host=Setting("--node_rank", options.get("node_rank")),
        address=Setting("--master_addr", options.get("master_addr", address)),
        port=Setting("--master_port", options.get("master_port", port)),
        log_dir=options.get("log_dir", "msrun_log"),
    )


def deepspeed(words: Sequence[str], environment: Mapping[str, str]) -> Launch:
    """The launch of DeepSpeed's launcher on this host, the only one or number --node_rank, by the words behind it.
    environment: not read."""
    options, launch = take_apart(words, DEEPSPEED)
    devices = options.get("include", "").partition(":")[2]
    included = str(len(devices.split(","))) if devices and "@" not in devices else None
    return _on_hosts(
        launch,
        processes=Setting("--num_gpus", options.get("num_gpus", included)),
        hosts=Setting("--num_nodes", options.get("num_nodes", "1")),
        host=Setting("--node_rank", options.get("node_rank")),
        address=Setting("--master_addr", options.get("master_addr")),
        port=Setting("--master_port", options.get("master_port")),
    )


def srun(words: Sequence[str], environment: Mapping[str, str]) -> Launch:
    """The launch of a program that `srun` starts; `words`: the program, and its arguments. The environment has the
    numbers of hosts and tasks as `tasks` returns them, and for several hosts SLURM_NODEID and MASTER_ADDR."""
    return _on_hosts(
        Launch({}, words[0], list(words[1:])),
        processes=Setting("srun --ntasks-per-node", environment["SLURM_NTASKS_PER_NODE"]),
        hosts=Setting("srun --nodes", environment["SLURM_NNODES"]),
        host=Setting("SLURM_NODEID", environment.get("SLURM_NODEID")),
        address=Setting("MASTER_ADDR", environment.get("MASTER_ADDR")),
        port=Setting("MASTER_PORT", environment.get("MASTER_PORT")),
    )


def enter_srun(words: Sequence[str], environment: Mapping[str, str]) -> Launch:
    """The program and arguments of an `srun` command, by the words behind `srun`; the launch's `options` are
    SLURM_NNODES and SLURM_NTASKS_PER_NODE (`tasks`). Without a program there is a finding in `unresolved`."""
    options, launch = take_apart(words, SRUN)
    launch.options = tasks(options, environment)
    if not launch.program:
        launch.unresolved.append(Finding("srun", None, "starts nothing", "give it a command"))
    return launch


def tasks(options: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Slurm's variables (SLURM_NNODES, SLURM_NTASKS_PER_NODE -> value) for the tasks that options of `sbatch` or `srun`
    ask for: the number of hosts, and that of tasks on each, by its option, else by the environment, else 1.

    A number of all tasks (--ntasks; SLURM_NTASKS where nothing gives the tasks on a host) goes before that on each: it
    is divided by the hosts, rounded down. Of these there are at most as many as tasks; where nothing gives their
    number, as many as hold all tasks with at most so many on each, else one. With a text that is no number above 0
    nothing is divided."""
    hosts = options.get("nodes", environment.get("SLURM_NNODES"))
    on_a_host = options.get("ntasks_per_node", environment.get("SLURM_NTASKS_PER_NODE"))
    every = options.get("ntasks", environment.get("SLURM_NTASKS") if on_a_host is None else None)
    given = [number for number in (every, hosts, on_a_host) if number is not None]
    if every is not None and all(number.isdecimal() and int(number) for number in given):
        total = int(every)
        nodes = -(-total // int(on_a_host or total)) if hosts is None else min(int(hosts), total)
        hosts, on_a_host = str(nodes), str(total // nodes)
    elif every is not None and (on_a_host is None or not every.isdecimal()):
        on_a_host = every
    found = {"SLURM_NNODES": hosts, "SLURM_NTASKS_PER_NODE": on_a_host}
    return {name: "1" if number is None else number for name, number in found.items()}


def msrun(words: Sequence[str], environment: Mapping[str, str]) -> Launch:
    """The launch of msrun's own command line, without options that are not known here, and without `python` or
    `python3` before the program. environment: not read."""
    options, launch = take_apart(words, MSRUN)
    launch.options = options
    for name in ("worker_num", "local_worker_num"):
        _number(Setting(f"--{name}", options.get(name, "8")), 1, launch.unresolved)
    if launch.program in ("python", "python3") and launch.arguments:
        launch.program, *launch.arguments = launch.arguments
    return launch


def _on_hosts(
    launch: Launch,
    processes: Setting,
    hosts: Setting,
    host: Setting,
    address: Setting,
    port: Setting,
    log_dir: str = "msrun_log",
) -> Launch:
    """The launch with so many `processes` on each of so many `hosts`, of which this is number `host`; a setting without
    the value that it needs becomes a finding of the launch."""
    unresolved = launch.unresolved
    local, nodes = (_number(setting, 1, unresolved) for setting in (processes, hosts))
    launch.options = {
        "worker_num": str(local * nodes) if local and nodes else OPEN,
        "local_worker_num": str(local or OPEN),
        "master_addr": address.value or "127.0.0.1",
        "master_port": str(_number(port, 1, unresolved) or OPEN) if port.value else "8118",
        "log_dir": log_dir,
        "join": "True",
    }
    rank: int | None = 0
    if nodes and nodes > 1:
        rank = _number(host, 0, unresolved)
        launch.options["node_rank"] = OPEN if rank is None else str(rank)
        if not address.value:
            unresolved.append(address.breaks(f"must be given for {nodes} hosts", "give the address of the first one"))
    # Each rank logs each step: without this msrun shows every line once for each rank.
    launch.options["tail_worker_log"] = OPEN if rank is None or local is None else str(rank * local)
    return launch


def _number(setting: Setting, least: int, unresolved: list[Finding]) -> int | None:
    if setting.value is not None and setting.value.isdecimal() and int(setting.value) >= least:
        return int(setting.value)
    rule = "must be given" if setting.value is None else f"must be a number from {least} on"
    unresolved.append(setting.breaks(rule, "write it into the script, or set its variable"))
    return None


LAUNCHERS = {"torchrun": torchrun, "deepspeed": deepspeed, "srun": srun, "msrun": msrun}
