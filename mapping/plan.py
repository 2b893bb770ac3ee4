"""Predict whether a run fits and how long a step takes, and with --suggest search layouts, before a run is started.

    python -m mapping plan --world-size 64 --device A100 -- --num-layers 32 --hidden-size 4096 ...
    python -m mapping plan groups --world-size 64 --rank 5 -- --tensor-model-parallel-size 8 ...
    python -m mapping plan schedule --schedule zb-h1 --stages 4 --micro-batches 8
    python -m mapping plan --calibrate FILE.yaml                measure this machine, and write it as a device
    python -m mapping plan --calibrate-from OUTPUT FILE.yaml    refine that by a finished run with --trace

The second and third print a rank's process groups, and draw a schedule. All but --calibrate need no device and no
MindSpore. Exit code of a plan: 0 if the run fits, 1 if it does not, 2 if arguments are wrong.
"""

import json
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import yaml

from mapping.flags import BY_NAME, REFUSED, Flag
from mapping.merge import Reading
from mapping.readers.meaning import is_unknown
from mapping.reading import read
from mapping.suggest import Suggestions, suggest, suggestion_lines
from parallel_core.config.base import Unknown
from parallel_core.findings import ConfigError, Finding
from parallel_core.planner import Plan, find_device
from parallel_core.planner.answer import Answer, answer, layout_answer, reliability_answer
from parallel_core.planner.device import device_file
from parallel_core.planner.failures import Reliability, reliability
from parallel_core.planner.plan import Beyond
from parallel_core.planner.recorded import read_run
from parallel_core.planner.refine import refined
from parallel_core.planner.report import draw, lines
from parallel_core.schedules import command as schedule_command
from parallel_core.system.command_line import command_line, ends_quietly, program
from parallel_core.system.files import replacing
from parallel_core.topology import command as groups_command

ASSUMED_VOCABULARY = "131072"
PICTURES = {
    "--draw": ("step", (".svg", ".json")),
    "--draw-memory": ("memory", (".svg",)),
    "--draw-ranks": ("ranks", (".svg",)),
}
"""Flag -> (subject of the drawing, endings that the file's name may have)."""


def options_of(argv: Sequence[str]) -> tuple[Namespace, list[str]]:
    """(The command's options, the script's arguments, which stand behind `--`). Exits with 2 for wrong options, or
    without `--`."""
    split = argv.index("--") if "--" in argv else len(argv)
    parser = command_line(__doc__, program("plan"), "%(prog)s [OPTIONS] -- THE SCRIPT'S ARGUMENTS")
    parser.add_argument("--world-size", type=int, help="devices of the job; default: what the environment says, or 1")
    parser.add_argument("--device", default="Ascend-910B", metavar="NAME|FILE.yaml", help="kind of device")
    parser.add_argument("--suggest", action="store_true", help="search the layouts of these devices")
    parser.add_argument(
        "--mtbf-hours", type=float, metavar="H", help="mean time between failures of one device; plans checkpoints"
    )
    parser.add_argument(
        "--save-seconds", type=float, default=60.0, metavar="S", help="seconds for which a checkpoint stops training"
    )
    parser.add_argument(
        "--restart-seconds", type=float, default=600.0, metavar="S", help="from a failure to the first step after it"
    )
    parser.add_argument("--draw", metavar="FILE", help="draw the step: .svg, or .json for chrome://tracing")
    parser.add_argument("--draw-memory", metavar="FILE.svg", help="draw the memory of stages over the step")
    parser.add_argument("--draw-ranks", metavar="FILE.svg", help="draw the ranks on the nodes")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options, others = parser.parse_known_args(argv[:split])
    if others or "--" not in argv:
        parser.error(f"{' '.join(others) or 'nothing to plan'}: the script's arguments come after --")
    for name in ("mtbf_hours", "save_seconds", "restart_seconds"):
        value = getattr(options, name)
        if value is not None and not value > 0:
            parser.error(f"--{name.replace('_', '-')} {value}: must be above 0")
    for flag, (_, endings) in PICTURES.items():
        if (path := _path(options, flag)) and path.suffix not in endings:
            parser.error(f"{flag} {path}: must end in {' or '.join(endings)}")
    if options.world_size is not None and options.world_size < 1:
        parser.error(f"--world-size {options.world_size}: must be at least 1")
    return options, list(argv[split + 1 :])


def _path(options: Namespace, flag: str) -> Path | None:
    named = getattr(options, flag.removeprefix("--").replace("-", "_"))
    return Path(named) if named else None


def plan_of(argv: Sequence[str], world_size: int | None, device: str) -> Plan:
    """The plan of a script's arguments. world_size: the number of devices; None: as for `mapping.arguments.parse_args`.
    device: name or file. A vocabulary that the arguments do not give is assumed to have ASSUMED_VOCABULARY ids.
    Findings about flags that training refuses, and about names that are no flags or keys, become the plan's `refused`.
    Raises ConfigError with all other findings, and as `find_device`; ValueError and OSError as
    `mapping.reading.read`."""
    reading, assumptions = _read(argv, world_size)
    found = find_device(device)
    rows = {**BY_NAME, **{entry.name: entry.row for entry in reading.given}}
    stopping = [finding for finding in reading.findings if not _is_refused(finding, rows)]
    if stopping:
        raise ConfigError(stopping)
    refused = tuple(f"training refuses {finding}" for finding in reading.findings)
    eight_bit = "float8" if getattr(reading.args, "fp8", None) else ""
    beyond = Beyond(eight_bit, bool(getattr(reading.args, "tp_comm_overlap", False)))
    fused = KEEPS_NO_SCORES.get(getattr(reading.args, "attention_backend", "auto"), found.fuses_attention)
    return Plan(reading.config, replace(found, fuses_attention=fused), refused, assumptions, beyond)


KEEPS_NO_SCORES = {"flash": True, "fused": True, "unfused": False, "local": False}
"""Value of --attention-backend -> whether attention keeps no matrix of scores; with auto the device's file says it."""


def _read(argv: Sequence[str], world_size: int | None) -> tuple[Reading, tuple[str, ...]]:
    """The reading of the arguments, and the assumptions in it as sentences: a vocabulary that only the tokenizer's
    files give is assumed."""
    reading = read(argv, world_size=world_size, explains=False)
    if not isinstance(reading.config.model_config.vocab_size, Unknown | None):
        return reading, ()
    words = f"the tokenizer's files are not read: --padded-vocab-size {ASSUMED_VOCABULARY} is assumed"
    return read([*argv, "--padded-vocab-size", ASSUMED_VOCABULARY], world_size=world_size, explains=False), (words,)


def _is_refused(finding: Finding, rows: Mapping[str, Flag]) -> bool:
    row = rows.get(finding.flag)
    return is_unknown(finding) or (row is not None and row.status == REFUSED)


def calibrate_from(argv: Sequence[str]) -> int:
    """Refine a device by the trace of a run, write it to FILE.yaml, and return 0; 2 for wrong arguments, or after a
    ValueError or OSError, with the reason on the error stream. argv: OUTPUT, the run's folder, and FILE.yaml. The
    device is the one in FILE.yaml, or if there is no such file that of the run's plan."""
    if len(argv) != 2 or Path(argv[1]).suffix != ".yaml":
        print(f"error: --calibrate-from {' '.join(argv)}: needs OUTPUT FILE.yaml", file=sys.stderr)
        return 2
    folder, path = Path(argv[0]), Path(argv[1])
    try:
        run = read_run(folder)
        device = find_device(argv[1]) if path.exists() else Plan.of_run(run.config).device
        found = refined(replace(device, engine="pynative"), [run])
        with replacing(path) as file:
            file.write(yaml.safe_dump(device_file(found), sort_keys=False).encode("utf-8"))
    except (OSError, ValueError) as error:
        print(f"error: --calibrate-from {folder}: {error}", file=sys.stderr)
        return 2
    before, after = (Plan(run.config, one).step.total for one in (device, found))
    left = found.calibration.ranges.time
    print(f"{path}: a step of {folder} takes {after:.4g} s by it +- {left:.0%}, {before:.4g} s before")
    return 0


def calibrate(argv: Sequence[str]) -> int:
    """Run `pynative.calibrate`, which measures this machine, with these arguments in a process of its own, and return
    that process's exit code."""
    return subprocess.run([sys.executable, "-m", "pynative.calibrate", *argv], check=False).returncode


SUBJECTS: dict[str, Callable[[Sequence[str]], int]] = {
    "groups": groups_command.main,
    "schedule": schedule_command.main,
    "--calibrate": calibrate,
    "--calibrate-from": calibrate_from,
}
"""First word of the command line -> the command for the rest; without such a word a run is planned."""


def main(argv: Sequence[str]) -> int:
    """Run the command, and return its exit code: 0 if the run fits, 1 if it does not, 2 after a ConfigError or
    for a drawing that cannot be written; with a first word of SUBJECTS that of the command that it names. Raises
    SystemExit with 2 for wrong options, and the other errors of `plan_of`."""
    if argv and argv[0] in SUBJECTS:
        return SUBJECTS[argv[0]](argv[1:])
    options, arguments = options_of(argv)
    try:
        plan = plan_of(arguments, options.world_size, options.device)
    except ConfigError as error:
        print("\n".join(f"error: {line}" for line in error.errors), file=sys.stderr)
        return 2
    found = suggest(arguments, plan) if options.suggest else None
    failures = _failures(options, plan)
    try:
        for flag, (subject, _) in PICTURES.items():
            if path := _path(options, flag):
                draw(plan, path, subject)
    except OSError as error:
        print(f"error: {flag} {path}: cannot be written ({error.strerror})", file=sys.stderr)
        return 2
    with ends_quietly():
        print(json.dumps(_answer(plan, found, failures), indent=1) if options.json else _text(plan, found, failures))
    return 0 if plan.fits else 1


def _failures(options: Namespace, plan: Plan) -> Reliability | None:
    if options.mtbf_hours is None:
        return None
    hours = options.mtbf_hours / plan.config.parallel_config.world_size
    return reliability(hours * 3600, options.save_seconds, options.restart_seconds)


def _answer(plan: Plan, found: Suggestions | None, failures: Reliability | None) -> Answer:
    whole = answer(plan)
    whole["reliability"] = None if failures is None else reliability_answer(failures)
    whole["layouts"] = [layout_answer(one) for one in found.layouts] if found else []
    return whole


def _text(plan: Plan, found: Suggestions | None, failures: Reliability | None) -> str:
    behind = [""] if failures or found else []
    behind += [str(failures)] if failures else []
    behind += [*suggestion_lines(found, plan)] if found else []
    return "\n".join([*lines(plan), *behind])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
