"""Say how each flag of a script is handled: `python -m mapping explain [OPTIONS] -- THE SCRIPT'S ARGUMENTS`.

It prints `starts` and the memory of a rank of each pipeline stage, as far as it is known, or each error that stops the
run; then notes, and the flags: those that are refused or wrong, those that are ignored, with the reason, and those that
act, with the option that they fill and its value. It needs no device and no MindSpore. Exit code 0 if the flags are
right, 1 for errors, 2 for a wrong call; whether this host has the device and the memory is not asked.

    python -m mapping explain --world-size 16 -- --tensor-model-parallel-size 8 --num-layers 32
"""

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from mapping.flags import IGNORED, MAPPED, REFUSED
from mapping.memory import as_json as memory_as_json
from mapping.memory import as_lines as memory_as_lines
from mapping.merge import Reading
from mapping.outcome import Outcome, outcome_of
from mapping.reading import read, stops
from parallel_core.findings import Finding
from parallel_core.system.command_line import command_line, ends_quietly, program
from parallel_core.system.terminal import has_colours


def outcomes(reading: Reading) -> Iterator[Outcome]:
    """The outcome of each entry of `reading.given`, in its order."""
    return (outcome_of(given, reading.config) for given in reading.given)


def as_json(reading: Reading) -> str:
    """The whole answer as a JSON text, for programs: whether the run starts, its flags, notes, findings, configuration
    and memory (an empty list if it does not start, or the memory is not known)."""
    found = stops(reading)
    return json.dumps(
        {
            "starts": not found,
            "stopped_by": list(map(str, found)),
            "accepted": not reading.errors,
            "flags": [vars(outcome) for outcome in outcomes(reading)],
            "errors": reading.errors,
            "notes": reading.notes,
            "findings": [_plain(finding) for finding in reading.findings],
            "config": reading.config.to_dict(),
            "memory": memory_as_json(reading.config) if not found else [],
        },
        indent=1,
    )


def _plain(finding: Finding) -> dict[str, Any]:
    return {**finding._asdict(), "value": None if finding.value is None else str(finding.value)}


WRONG = "wrong"
"""The status, in the text, of a flag that an error names."""

COLOURS = {"error": 31, WRONG: 31, REFUSED: 31, IGNORED: 33, "note": 33, "starts": 32}
"""First word of a line -> its colour on a terminal (ECMA-48)."""


def as_text(reading: Reading, verbose: bool = False) -> str:
    """The whole answer, for people: the errors, or that the run starts and its memory; then notes, the flags, and with
    `verbose` the configuration."""
    found = stops(reading)
    lines = [*(f"error: {finding}" for finding in found)] or ["starts"]
    lines += [] if found else ["", *memory_as_lines(reading.config)]
    lines += ["", *(f"note: {note}" for note in reading.notes)] if reading.notes else []
    wrong = {finding.flag for finding in found}
    told = list(outcomes(reading))
    rows = [_columns(outcome, outcome.flag in wrong) for outcome in told]
    unread = {row.name for row in reading.sources.unread} - {outcome.flag for outcome in told}
    rows += [(WRONG, flag, "see the error above") for flag in sorted(unread)]
    rows.sort(key=lambda row: (REFUSED, WRONG, IGNORED, MAPPED).index(row[0]))
    width = max((len(flag) for _, flag, _ in rows), default=0)
    lines += ["", *(f"{status:8} {flag:{min(width, 60)}} {rest}" for status, flag, rest in rows)]
    for name, section in reading.config.to_dict().items() if verbose else ():
        lines += ["", f"{name}:", *(f"  {field}: {value}" for field, value in section.items())]
    return "\n".join(lines)


def coloured(line: str) -> str:
    """A line with its first word coloured, if that word has a colour in COLOURS."""
    word = line.partition(" ")[0].rstrip(":")
    return f"\33[{COLOURS[word]}m{word}\33[0m{line[len(word) :]}" if word in COLOURS else line


def _columns(outcome: Outcome, is_wrong: bool) -> tuple[str, str, str]:
    """Status, flag and explanation of an outcome, as columns of a line: the field with its final value for a flag that
    acts, else the reason. is_wrong: an error names the flag."""
    flag, value = outcome.flag, outcome.value
    if is_wrong and outcome.status != REFUSED:
        return WRONG, flag, "see the error above"
    if outcome.target:
        return outcome.status, flag, f"{outcome.target} = {value}{': ' * bool(outcome.reason)}{outcome.reason}"
    words = value if isinstance(value, list) else [value]
    typed = "" if value is None or isinstance(value, bool) else " ".join(map(str, words))
    return outcome.status, f"{flag} {typed}".rstrip(), outcome.reason


def write_reference(path: Path = Path("docs/flags.md")) -> int:
    """Write the reference page of all flags to `path`, print the path, and return the exit code 0."""
    from mapping.flag_reference import reference

    path.write_text(reference(), encoding="utf-8")
    print(path)
    return 0


def main(argv: Sequence[str]) -> int:
    split = argv.index("--") if "--" in argv else len(argv)
    parser = command_line(__doc__, program("explain"), "%(prog)s [OPTIONS] -- THE SCRIPT'S ARGUMENTS")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--world-size", type=int, help="processes of the job; default: what the environment says")
    parser.add_argument("--check-files", action="store_true", help="look at tokenizer, data and checkpoint files too")
    parser.add_argument("--verbose", action="store_true", help="print the whole configuration as well")
    parser.add_argument("--doc", action="store_true", help="write the reference of all flags to docs/flags.md")
    options, others = parser.parse_known_args(argv[:split])
    if others or not (options.doc or "--" in argv):
        parser.error(f"{' '.join(others) or 'nothing to explain'}: the script's arguments come after --")
    if options.world_size is not None and options.world_size < 1:
        parser.error(f"--world-size {options.world_size}: must be at least 1")
    if options.doc:
        return write_reference()
    reading = read(argv[split + 1 :], world_size=options.world_size, check_files=options.check_files)
    with ends_quietly():
        answer = as_json(reading) if options.json else as_text(reading, options.verbose)
        is_coloured = has_colours(sys.stdout) and not options.json
        print("\n".join(map(coloured, answer.split("\n"))) if is_coloured else answer)
    return 1 if stops(reading) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
