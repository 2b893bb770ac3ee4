"""The share of public launch scripts that start, by slice, and the reasons that stop the others.

    python tests/support/mapping/acceptance.py [SCRIPTS.json] [--slice NAME] [--verbose]

SCRIPTS.json (without: that of tests/assets) holds `scripts`: a list of `argv`, `world` {nnodes, nproc}, `world_from`,
`source_repo`, `rev`, `file`, `kind`, `tags`. Where no launcher said how many processes there are, the recorded number
is a guess: such a script starts if it does at some multiple of it. `--as-recorded` takes guesses for what scripts say.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from mapping.reading import read, stops
from tests.support.assets import asset, recorded

Script = dict[str, Any]


def _dense_pretraining(script: Script) -> bool:
    """Whether the script pre-trains a dense model."""
    return script["kind"] == "pretrain" and "dense" in script["tags"]


SLICES: dict[str, Callable[[Script], bool]] = {
    "all": lambda script: True,
    "examples/mindspore": lambda script: script["rev"] == "HEAD" and "mindspore/" in script["file"],
    "dense pretraining": _dense_pretraining,
    "dense pretraining, newest": lambda script: _dense_pretraining(script) and script["rev"] == "HEAD",
    "dense": lambda script: "dense" in script["tags"],
    "mixture of experts": lambda script: "moe" in script["tags"] and "mla" not in script["tags"],
    "mixture of experts, pretraining": lambda script: (
        SLICES["mixture of experts"](script) and script["kind"] == "pretrain"
    ),
    "latent attention": lambda script: "mla" in script["tags"],
    "context parallel": lambda script: "cp" in script["tags"],
    "lora": lambda script: "lora" in script["tags"],
    "fine-tuning": lambda script: script["kind"] == "finetune",
    "NVIDIA": lambda script: script["source_repo"] == "NVIDIA/Megatron-LM",
    "MindSpeed-LLM": lambda script: script["source_repo"] == "Ascend/MindSpeed-LLM",
}


def worlds(script: Script) -> list[int]:
    """The numbers of processes to try: the script's own, or the recorded guess times 1 to 16 where it says none
    (`world_from`)."""
    recorded = script["world"]["nnodes"] * script["world"]["nproc"]
    is_known = script["world_from"] in ("script", "recipe")
    return [recorded] if is_known else [recorded * more for more in (1, 2, 4, 8, 16)]


def stops_of(script: Script, as_recorded: bool = False) -> list[str]:
    """The errors of the script at the number of processes with fewest; empty if it starts. `as_recorded` tries the
    recorded number alone."""
    sizes = worlds(script)[: 1 if as_recorded else None]
    found = [list(map(str, stops(read(script["argv"], world_size=size)))) for size in sizes]
    return min(found, key=len)


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scripts", type=Path, nargs="?", default=asset("megatron_flags/scripts.json.xz"))
    parser.add_argument("--slice", choices=SLICES, default="all", help="list what stops the scripts of this slice")
    parser.add_argument("--as-recorded", action="store_true", help="at the recorded world sizes, guessed ones too")
    parser.add_argument("--verbose", action="store_true", help="name every script that does not start")
    options = parser.parse_args(argv)
    scripts = recorded(str(options.scripts.resolve()))["scripts"]
    stopped_by = {script["id"]: stops_of(script, options.as_recorded) for script in scripts}
    for name, belongs in SLICES.items():
        ids = [script["id"] for script in scripts if belongs(script)]
        starting = sum(not stopped_by[identity] for identity in ids)
        print(f"{name:32} {starting:4} of {len(ids):4}  {starting / max(1, len(ids)):6.1%}")
    chosen = [script for script in scripts if SLICES[options.slice](script) and stopped_by[script["id"]]]
    reasons = Counter(reason for script in chosen for reason in {_kind(error) for error in stopped_by[script["id"]]})
    print(f"\nscripts of '{options.slice}' stopped by:")
    for reason, count in reasons.most_common():
        print(f"{count:4}  {reason}")
    if options.verbose:
        for script in chosen:
            print(script["id"], script["source_repo"], script["file"], *stopped_by[script["id"]], sep="\n    ")


def _kind(error: str) -> str:
    """The error with every number replaced by N, to count errors of one kind."""
    return re.sub(r"\d[\d.]*", "N", error)


if __name__ == "__main__":
    main(sys.argv[1:])
