"""Say why two runs differ: `python -m mapping compare A B`.

A and B are folders of runs (of --save, or `output`), or a case that was recorded of Megatron
(`examples/gpt/record_megatron.py` and `compare_with_megatron.py` say how). Loss, norm and rates of each step that both
have are compared, and of steps that both have recorded (--record) weights, data, activations, gradients and updates. It
prints what differs in configuration and environment, then the first step, and in it layer and parameter, that differ by
more than rounding in their types. The layouts may differ.

With --bisect A and B are compared by the checkpoints of both: the first step at which weights differ is looked for by
halves.

    python -m mapping compare checkpoints/run-1 checkpoints/run-2

The exit code is 0 if they are the same, 1 if they differ, and 2 if they cannot be compared.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from parallel_core.compare.checkpoints import bisected
from parallel_core.compare.differences import SAME
from parallel_core.compare.runs import ComparedRun, apart, first_differences
from parallel_core.system.command_line import command_line, ends_quietly, program

MOST = 40
"""The largest number of differing settings that are printed of the configuration, and of the environment."""


def report(one: ComparedRun, other: ComparedRun, exact: bool) -> tuple[list[str], bool]:
    """The lines about two runs: settings of configuration and environment that both have and that differ, without
    --save (at most MOST of each), then the differences of the first step that has any; and whether the runs differ in
    what they computed. exact: any difference counts; without it, one that rounding does not explain. Raises as
    `first_differences`."""
    lines = [f"A: {one.folder}", f"B: {other.folder}"]
    for what, mine, theirs in (
        ("configuration", one.settings, other.settings),
        ("environment", one.environment, other.environment),
    ):
        settings = apart(mine, theirs)
        if mine and theirs:
            lines.append(f"{what}: {len(settings) or 'nothing'} differs" + (" (A | B)" if settings else ""))
            lines += [f"  {line}" for line in settings[:MOST]]
    common, recorded = sorted({*one.steps} & {*other.steps}), sorted({*one.recorded} & {*other.recorded})
    found = first_differences(one, other, exact)
    if found:
        lines.append(f"the first difference: {found[0]}")
        lines += [f"  then: {difference}" for difference in found[1:]]
        step = found[0].step
        if step not in recorded:
            lines.append(
                f"to see the layer, run both again up to step {step} with --record --record-step-start {step - 1} "
                f"--record-step-end {step}"
            )
    else:
        told = f", {len(recorded)} of them with all that was recorded" if recorded else ""
        lines.append(f"the same in {len(common)} steps{told}, {SAME[exact]}")
    return lines, bool(found)


def main(argv: Sequence[str]) -> int:
    """Run the command, and return its exit code: 0 if the runs are the same, 1 if they differ, 2 for a folder that has
    nothing to compare or in which reading raises OSError or ValueError, and for runs without a common step."""
    parser = command_line(__doc__, program("compare"))
    parser.add_argument("runs", nargs=2, type=Path, metavar="RUN", help="a run's folder, or a recorded case")
    parser.add_argument("--exact", action="store_true", help="call any other bit a difference")
    parser.add_argument("--bisect", action="store_true", help="compare the checkpoints of both by halves")
    options = parser.parse_args(argv)
    try:
        if options.bisect:
            lines, differ = bisected(options.runs[0], options.runs[1], options.exact)
        else:
            one, other = (ComparedRun(folder) for folder in options.runs)
            for run in (one, other):
                if not run.steps:
                    raise ValueError(
                        f"{run.folder}: has no figures of a run; give its folder of --save, or its `output`"
                    )
            if not {*one.steps} & {*other.steps}:
                raise ValueError(
                    f"{one.folder}, {other.folder}: have no step in common; compare runs of the same steps"
                )
            lines, differ = report(one, other, options.exact)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    with ends_quietly():
        print("\n".join(lines))
    return int(differ)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
