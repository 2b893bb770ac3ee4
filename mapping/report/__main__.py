"""Put what runs have left in their folders into one HTML page: `python -m mapping report OUTPUT [OUTPUT ...]`.

OUTPUT is the folder of --save, or `output` where nothing is saved. The page has curves, the load of experts, a recorded
step's timeline (--trace), configuration, flags, environment, warnings and restarts; several runs stand beside each
other. It needs no network. With --watch the page is served on this host while the runs go on, until Ctrl-C.

    pip install plotly
    python -m mapping report checkpoints/run-1 checkpoints/run-2 --to compared.html
"""

import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path

from mapping.report.serve import serve
from parallel_core.report import Run, html, page_of
from parallel_core.report.run import name_apart
from parallel_core.system.command_line import command_line, ends_quietly, program
from parallel_core.system.files import replacing

REPORT = "report.html"
INSTALL = "plotly, which draws the curves, is not installed: pip install plotly"


def library() -> str:
    """The text of plotly.js. Raises ModuleNotFoundError without plotly."""
    return str(import_module("plotly.offline").get_plotlyjs())


def problems(folders: Sequence[Path], runs: Sequence[Run], is_watched: bool) -> Iterator[str]:
    """Messages about folders whose absolute paths are given twice, that are no folders, or in which `runs` found
    neither figures nor events nor a trace (which with `is_watched` may come later)."""
    for number, (folder, run) in enumerate(zip(folders, runs, strict=True)):
        if folder.absolute() in [other.absolute() for other in folders[:number]]:
            yield f"{folder}: is given twice; leave one out"
        elif not folder.is_dir():
            yield f"{folder}: is no folder; give a run's folder of --save, or its `output`"
        elif run.is_empty and not is_watched:
            yield f"{folder}: has no figures of a run (metrics.jsonl); give a run's folder of --save, or its `output`"


def main(argv: Sequence[str]) -> int:
    """Run the command, and return its exit code: 0, or 2 if something is wrong. Raises SystemExit for wrong options (2)
    and after --help (0)."""
    parser = command_line(__doc__, program("report"))
    parser.add_argument("folders", nargs="+", type=Path, metavar="OUTPUT", help="a run's folder")
    parser.add_argument("--to", type=Path, help=f"file to write (default: {REPORT} in the first OUTPUT)")
    parser.add_argument("--watch", action="store_true", help="serve the page on 127.0.0.1, with what runs add")
    parser.add_argument("--port", type=int, default=8265, help="of --watch; 0 takes a free one")
    options = parser.parse_args(argv)
    if not 0 <= options.port < 65536:
        parser.error(f"--port {options.port}: must be 0 to 65535; choose another")
    runs = [Run(folder) for folder in options.folders]
    try:
        script = library()
        for run in runs:
            run.refresh()
    except ModuleNotFoundError:
        return _failed(INSTALL)
    except OSError as error:
        return _failed(f"{error.filename}: {error.strerror}")
    if found := list(problems(options.folders, runs, options.watch)):
        return _failed(*found)
    name_apart(runs)
    try:
        return serve(runs, script, options.port) if options.watch else _write(runs, script, options.to)
    except OSError as error:
        return _failed(f"{error.filename or f'--port {options.port}'}: {error.strerror}")


def _write(runs: Sequence[Run], script: str, to: Path | None) -> int:
    path = to or runs[0].folder / REPORT
    with replacing(path) as file:
        file.write(html(page_of(runs), script).encode())
    with ends_quietly():
        print(path)
    return 0


def _failed(*words: str) -> int:
    print(*(f"error: {line}" for line in words), sep="\n", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
