"""Whether a run fits, how long a step takes, which layout is best, before anything is started.

    python -m mapping plan [OPTIONS] -- THE SCRIPT'S ARGUMENTS

Needs no device and no MindSpore. Exit code: 0 if the run fits, 1 if it does not, 2 if something stops it.
"""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Sequence

from mapping.flags import BY_NAME, REFUSED
from mapping.merge import Reading
from mapping.reading import read
from parallel_core.config.base import Unknown
from parallel_core.findings import ConfigError, Finding
from parallel_core.planner import Plan, find_device
from parallel_core.planner.answer import answer
from parallel_core.planner.report import lines
from parallel_core.system.command_line import command_line, ends_quietly

ASSUMED_VOCABULARY = "131072"


def options_of(argv: Sequence[str]) -> tuple[Namespace, list[str]]:
    """The command's options, and the script's arguments behind `--`."""
    split = argv.index("--") if "--" in argv else len(argv)
    parser = command_line(__doc__, "python -m mapping plan", "%(prog)s [OPTIONS] -- THE SCRIPT'S ARGUMENTS")
    parser.add_argument("--world-size", type=int, help="devices of the job; default: what the environment says, or 1")
    parser.add_argument("--device", default="Ascend-910B", metavar="NAME|FILE.yaml", help="kind of device")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options, others = parser.parse_known_args(argv[:split])
    if others or "--" not in argv:
        parser.error(f"{' '.join(others) or 'nothing to plan'}: the script's arguments come after --")
    if options.world_size is not None and options.world_size < 1:
        parser.error(f"--world-size {options.world_size}: must be at least 1")
    return options, list(argv[split + 1 :])


def plan_of(argv: Sequence[str], world_size: int | None, device: str) -> Plan:
    """The plan of a script's arguments. Raises ConfigError with everything that keeps it from being made. Flags that
    training refuses although nothing of them changes what is planned become warnings."""
    reading, assumptions = _read(argv, world_size)
    found = find_device(device)
    stopping = [finding for finding in reading.findings if not _is_refused(finding)]
    if stopping:
        raise ConfigError(stopping)
    refused = tuple(f"training refuses {finding}" for finding in reading.findings)
    return Plan(reading.config, found, refused, assumptions)


def _read(argv: Sequence[str], world_size: int | None) -> tuple[Reading, tuple[str, ...]]:
    """A vocabulary that only files say is assumed."""
    reading = read(argv, world_size=world_size)
    if not isinstance(reading.config.model_config.vocab_size, Unknown | None):
        return reading, ()
    words = f"the tokenizer's files are not read: --padded-vocab-size {ASSUMED_VOCABULARY} is assumed"
    return read([*argv, "--padded-vocab-size", ASSUMED_VOCABULARY], world_size=world_size), (words,)


def _is_refused(finding: Finding) -> bool:
    row = BY_NAME.get(finding.flag)
    return row is None or row.status == REFUSED


def main(argv: Sequence[str]) -> int:
    """The command; its exit code."""
    options, arguments = options_of(argv)
    try:
        plan = plan_of(arguments, options.world_size, options.device)
    except ConfigError as error:
        print("\n".join(f"error: {line}" for line in error.errors), file=sys.stderr)
        return 2
    with ends_quietly():
        print(json.dumps(answer(plan), indent=1) if options.json else "\n".join(lines(plan)))
    return 0 if plan.fits else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
