"""`plan groups`: the process groups of a rank, or how many of each kind a job has.

    python -m mapping plan groups --world-size 10240 --tensor-model-parallel-size 8 --rank 4711
    python -m mapping plan groups --world-size 64 -- THE SCRIPT'S ARGUMENTS

Behind `--` arguments of a training script may stand: flags that this command does not have are passed over.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from parallel_core.sizes import CONTEXT_PARALLEL_ALGORITHMS, RANK_ORDERS, RING
from parallel_core.system.command_line import command_line, program
from parallel_core.topology import KINDS, Topology

SIZES = {
    "--tensor-model-parallel-size": "ranks that share each layer",
    "--pipeline-model-parallel-size": "stages of the pipeline",
    "--context-parallel-size": "ranks that share each sequence",
    "--expert-model-parallel-size": "ranks that share the experts of a layer",
    "--num-distributed-optimizer-instances": "copies of the distributed optimizer's state",
}
SHOWN_RANKS = 16


def _parser() -> argparse.ArgumentParser:
    parser = command_line(__doc__, program("plan groups"))
    parser.add_argument("--world-size", type=int, required=True, help="processes of the job")
    for flag, meaning in SIZES.items():
        parser.add_argument(flag, type=int, default=1, help=meaning)
    parser.add_argument("--expert-tensor-parallel-size", type=int, help="ranks that share each expert")
    parser.add_argument(
        "--context-parallel-algo", choices=CONTEXT_PARALLEL_ALGORITHMS, default=RING, help="how they share it"
    )
    parser.add_argument("--ulysses-degree-in-cp", type=int, help="inner all-to-all of the hybrid algorithm")
    parser.add_argument("--use-tp-pp-dp-mapping", action="store_true", help="stages before data-parallel copies")
    parser.add_argument("--rank", type=int, help="show this rank's groups; without it, how many groups there are")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    return parser


def _options(argv: Sequence[str]) -> argparse.Namespace:
    """The options of the command, with the sizes that a script's arguments behind `--` give."""
    parser, split = _parser(), [*argv, "--"].index("--")
    own, script = argv[:split], argv[split + 1 :]
    parser.parse_args(own)
    return parser.parse_known_args([*own, *script])[0]


def groups_of(topology: Topology, rank: int) -> dict[str, list[int]]:
    """Kind -> global ranks, for every process group that `rank` is in. Raises ValueError for a rank that the job does
    not have."""
    if not 0 <= rank < topology.world_size:
        raise ValueError(f"--rank {rank}: must be between 0 and --world-size {topology.world_size} - 1; change it")
    return {kind: list(topology.group(kind, rank)) for kind in KINDS if topology.is_member(kind, rank)}


def summary(topology: Topology) -> dict[str, dict[str, Any]]:
    """Kind -> "groups": their number, "ranks": the number of ranks of each, "first": the ranks of the first one."""
    table = {kind: topology.groups(kind) for kind in KINDS}
    return {
        kind: {"groups": len(groups), "ranks": groups.shape[1], "first": groups[0].tolist()}
        for kind, groups in table.items()
    }


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) <= SHOWN_RANKS:
        return " ".join(map(str, ranks))
    return f"{' '.join(map(str, ranks[: SHOWN_RANKS - 2]))} ... {ranks[-1]} ({len(ranks)} ranks)"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the groups as text or JSON. Returns the exit code: 0, or 2 for wrong sizes or a --rank that the job does
    not have, with the error on stderr. argparse itself ends the process after --help (0) and for wrong arguments
    (2)."""
    options = _options(sys.argv[1:] if argv is None else argv)
    try:
        topology = Topology.of(options, order=RANK_ORDERS[options.use_tp_pp_dp_mapping])
        answer: dict[str, Any] = summary(topology) if options.rank is None else groups_of(topology, options.rank)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(answer))
        return 0
    for kind, found in answer.items():
        meaning = f"{kind:19}{KINDS[kind].meaning:62}"
        if options.rank is None:
            print(f"{meaning}{found['groups']:6} x {found['ranks']:<6}{_ranks(found['first'])}")
        else:
            print(f"{meaning}{_ranks(found)}")
    return 0
