"""`python benchmarks/preprocess.py --megatron PYTHON --tokenizer-model FOLDER`: preprocessing beside Megatron's tool.

PYTHON: an interpreter with megatron-core and transformers; FOLDER: a HuggingFace tokenizer. A .jsonl file is made of
Python's own sources, and tokenised by both commands in turns, each in processes of its own, start included. Prints the
seconds of each, their ratio with the start of the processes and without, and whether the files are equal.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from parallel_core.system.command_line import command_line

ROOT = Path(__file__).resolve().parents[1]


def write_input(path: Path, megabytes: float) -> int:
    """Write a .jsonl file with documents of 200 to 8000 characters; the number of bytes written."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py"))
    text = "".join(file.read_text(encoding="utf-8", errors="ignore") for file in files[:2000])
    drawn, written = random.Random(1234), 0
    with path.open("w") as lines:
        while written < megabytes * 1e6:
            begin = drawn.randrange(len(text))
            written += lines.write(json.dumps({"text": text[begin : begin + drawn.randrange(200, 8000)]}) + "\n")
    return written


def seconds(command: list[str]) -> float:
    """Seconds of a command on the clock. It must succeed."""
    began = time.monotonic()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    return time.monotonic() - began


def contents(prefix: str) -> list[bytes]:
    """The bytes of both files of the data set with this prefix."""
    return [Path(f"{prefix}_text_document{ending}").read_bytes() for ending in (".bin", ".idx")]


def main() -> None:
    """Run both commands in turns and print seconds, ratios and whether the files are equal."""
    parser = command_line(__doc__)
    parser.add_argument("--megatron", required=True, help="interpreter with megatron-core and transformers")
    parser.add_argument("--tokenizer-model", required=True, help="a HuggingFace folder")
    parser.add_argument("--megabytes", type=float, default=20, help="size of the input")
    parser.add_argument("--workers", type=int, default=2, help="processes that tokenise")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each, in turns")
    parser.add_argument("--legacy-tokenizer", action="store_true", help="Megatron's older tokenizers, in both")
    args = parser.parse_args()
    with TemporaryDirectory() as folder:
        file, ours, megatron = f"{folder}/in.jsonl", f"{folder}/ours", f"{folder}/megatron"
        size = write_input(Path(file), args.megabytes)
        legacy = ["--legacy-tokenizer"] if args.legacy_tokenizer else []
        reference, model = str(ROOT / "benchmarks/megatron_preprocess.py"), args.tokenizer_model
        flags = f"--input {file} --output-prefix {ours} --tokenizer-type HuggingFaceTokenizer --append-eod".split()
        flags += ["--tokenizer-model", model, "--workers", str(args.workers), *legacy]
        commands = {
            megatron: [args.megatron, reference, file, megatron, model, str(args.workers), *legacy],
            ours: [sys.executable, "-m", "parallel_core.data.preprocess", *flags],
        }
        whole = Path(file).read_bytes()
        Path(file).write_text('{"text": "a"}\n')
        starts = {name: seconds(command) for name, command in commands.items()}
        Path(file).write_bytes(whole)
        taken: dict[str, list[float]] = {name: [] for name in commands}
        for number in range(args.rounds):
            for name, command in commands.items():
                taken[name].append(seconds(command))
            pair = taken[megatron][-1], taken[ours][-1]
            print(f"round {number}: Megatron {pair[0]:.1f} s, ours {pair[1]:.1f} s, ratio {pair[0] / pair[1]:.2f}")
        pairs = list(zip(taken[megatron], taken[ours], strict=True))
        ratio = statistics.median(a / b for a, b in pairs)
        later = statistics.median((a - starts[megatron]) / (b - starts[ours]) for a, b in pairs)
        same = "equal" if contents(ours) == contents(megatron) else "different"
        print(
            f"{size / 1e6:.0f} MB, {args.workers} workers: median ratio {ratio:.2f}, {later:.2f} without the start, "
            f"files {same}"
        )


if __name__ == "__main__":
    main()
