"""For each option of the table a second legal value beside a model, and what is known of it without a run."""

from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

from mapping.explain import outcomes
from mapping.flags import IGNORED, MAPPED, ROWS, Flag
from mapping.merge import Reading
from mapping.reading import read
from tests.support.effects.models import MODELS, line
from tests.support.effects.plan import PARTS
from tests.support.mapping.variations import COMPANY, typed_values, value_of

OPTIONS = {row.name: row for row in ROWS if row.status == MAPPED and row.target}

VALUES = {
    "--save": "SAVE/other",
    "--load": "SAVE/nothing",
    "--model_name_or_path": "SAVE/nothing",
    "--resume_from_checkpoint": "SAVE/nothing",
    "--data-path": "DATA-2",
    "--split": "70,30,0",
    "--data-cache-path": "SAVE/cache",
    "--dataloader-type": "cyclic",
    "--vocab-size": "50",
    "--decoupled-min-lr": "1e-4",
    "--max-scale-window": "40",
    "--num-layer-list": "1,3",
    **dict.fromkeys(("--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers"), "1"),
    "--num-layers-per-virtual-pipeline-stage": "1",
    "--communication-data-type": "bf16",
    **dict.fromkeys(("--virtual-pipeline-model-parallel-size", "--num-virtual-stages-per-pipeline-rank"), "2"),
    "--lr-warmup-fraction": "0.5",
    "--exit-interval": "1",
    "--save-retain-interval": "2",
    "--min-loss-scale": "32",
    "--moe-router-bias-update-rate": "1",
    **dict.fromkeys(("--beta-fast", "--rope-scaling-beta-fast", "--beta-slow", "--rope-scaling-beta-slow"), "2"),
    **dict.fromkeys(("--train-data-path", "--valid-data-path", "--test-data-path"), "DATA-2"),
    "--pad-vocab-size-to": "128",
    "--encoder-num-layers": "4",
    "--encoder-seq-length": "8",
    "--kernels": "ops",
    "--log-interval": "4",
    "--eval-iters": "2",
    "--save-interval": "2",
    "--keep-checkpoint-max": "1",
    "--clip-grad-value": "0.001",
    "--mtp-num-layers": "1",
    "--moe-expert-capacity-factor": "0.5",
    "--moe-train-capacity-factor": "0.5",
    "--moe-router-group-topk": "1",
    "--original-max-position-embeddings": "8",
    "--summary-dir": "SAVE/summary",
    "--log-memory-interval": "1",
    "--plan-device": "A100",
    "--rerun-mode": "report_stats",
    "--qk-clip-threshold": "1e-6",
}
"""Folders, and values that a run of a few steps shows, in the place of what the lists of words have."""

_EVALUATED = "--eval-iters 1 --eval-interval 1"
_OF_WRITERS = (
    "--tensorboard-log-interval",
    "--tensorboard-queue-size",
    "--log-timers-to-tensorboard",
    "--no-log-loss-scale-to-tensorboard",
    "--log-validation-ppl-to-tensorboard",
    "--log-memory-to-tensorboard",
    "--log-world-size-to-tensorboard",
    "--log-throughput",
)

BESIDE = {
    "--moe-router-group-topk": "--num-experts 4 --moe-router-num-groups 2",
    "--calculate-per-token-loss": "--eod-mask-loss",
    "--eval-iters": "--eval-interval 1 --eval-iters 1",
    "--save-retain-interval": "--save x --save-interval 1 --train-iters 3",
    "--muon-nesterov": "--train-iters 2",
    **dict.fromkeys(
        (
            "--exit-interval",
            "--log-interval",
            "--moe-router-bias-update-rate",
            "--check-weight-hash-across-dp-replicas-interval",
        ),
        "--train-iters 3",
    ),
    "--hot-expert-num": "--num-experts 4 --moe-expert-capacity-factor 0.5 --cold-token-percent 0.5",
    **dict.fromkeys(("--max-scale-window", "--min-scale-window"), "--fp16 --adaptive-loss-scale"),
    **dict.fromkeys(
        ("--start-weight-decay", "--end-weight-decay", "--weight-decay-incr-style"),
        "--start-weight-decay 0.01 --end-weight-decay 0.1 --weight-decay-incr-style linear --train-iters 3",
    ),
    "--qk-clip-alpha": "--qk-clip --qk-clip-threshold 1e-6 --train-iters 2",
    "--qk-clip-threshold": "--qk-clip --train-iters 2",
    **dict.fromkeys(
        ("--make-vocab-size-divisible-by", "--pad-vocab-size-to", "--extra-vocab-size"), "~padded-vocab-size"
    ),
    **dict.fromkeys(
        ("--train-data-path", "--valid-data-path", "--test-data-path"),
        "~data-path ~split --train-data-path DATA --valid-data-path DATA --test-data-path DATA",
    ),
    "--encoder-num-layers": "~num-layers --encoder-num-layers 2",
    "--encoder-seq-length": "~seq-length --encoder-seq-length 16",
    **dict.fromkeys(("--context-parallel-algo", "--ulysses-degree-in-cp"), "--context-parallel-size 2"),
    **dict.fromkeys(_OF_WRITERS, "--tensorboard-dir SAVE/curves --log-timers-to-tensorboard " + _EVALUATED),
    "--wandb-project": "--wandb-exp-name x",
    **dict.fromkeys(("--wandb-exp-name", "--wandb-save-dir", "--wandb-entity"), "--wandb-project x --wandb-exp-name y"),
    **dict.fromkeys(("--timing-log-option", "--no-barrier-with-level-1-timing"), "--timing-log-level 2"),
    "--log-progress": "--save SAVE --save-interval 1",
    "--log-straggler": "--log-interval 1",
    "--straggler-minmax-count": "--log-straggler --log-interval 1",
    "--loss-spike-action": "--loss-spike-deviations 6",
    "--record-step-start": "--record --record-step-end 2 --train-iters 2",
    "--record-step-end": "--record --train-iters 2",
    **dict.fromkeys(("--summary-dir", "--summary-collect-freq"), "--num-experts 4 --save-token-distribution"),
}
"""Flags that are tried first beside a value, for the same reason."""


NEVER_LEGAL = {
    "--tokenizer-type": "these runs' tokenizer has no files",
    "--patch-tokenizer-type": "these runs' tokenizer has no files",
    "--dataset": "needs a file of raw data for each split",
    "--mock-data": "stands in the place of --data-path",
    "--enable-shared-expert": "stands beside --shared-moe-ffn-hidden-size alone",
    "--shared-moe-ffn-hidden-size": "needs --enable-shared-expert, which needs it",
}
"""Options without a second value that is legal beside a model that is legal without it -> why."""


FEW = 4


class Tried(NamedTuple):
    """An option with a second value beside a model."""

    option: str
    change: str
    """The change of the model's command line."""
    company: str
    """Flags beside the option, there and in the line that it is compared with."""
    reason: str
    """Why it has no effect, as the user is told; empty if nothing says so."""
    part: str
    """A part of the plan that it changes; empty if there is none."""


def tries(model: str) -> list[Tried]:
    """One for every option that has a legal second value there."""
    named = (name for name in OPTIONS if name not in NEVER_LEGAL)
    return [found for name in named if (found := _first_legal(model, name)) is not None]


@cache
def _before(model: str, company: str) -> Reading:
    return read(line(model, company), world_size=MODELS[model].ranks)


@cache
def _part(model: str, company: str, part: str) -> str:
    return str(PARTS[part](_before(model, company).config))


_legal: dict[str, dict[tuple[str, str], None]] = defaultdict(dict)
"""Option -> company and value that were legal beside other models, to be tried first."""
_changed: dict[str, str] = {}
"""Option -> the part of the plan that it changed beside another model."""


def _first_legal(model: str, name: str) -> Tried | None:
    """The first company and value of an option that are legal beside a model."""
    tried = (_tried(model, name, *pair) for pair in _pairs(name))
    return next((one for one in tried if one is not None), None)


def _pairs(name: str) -> Iterable[tuple[str, str]]:
    """Companies and values in the order of trial: what a run shows best first, then what was legal beside another
    model; then few others, if something was."""
    known = _legal[name]
    values = [VALUES[name]] if name in VALUES else [*dict.fromkeys(_values(OPTIONS[name]))][: FEW if known else None]
    companies = dict.fromkeys((BESIDE.get(name, ""), COMPANY.get(name, "")))
    pairs = [(company, value) for value in values for company in companies]
    chosen = [pair for pair in (*known, *pairs) if name in BESIDE and pair[0] == BESIDE[name]]
    return dict.fromkeys([*chosen, *known, *pairs])


def _tried(model: str, name: str, company: str, value: str) -> Tried | None:
    before = _before(model, company)
    if before.errors:
        return None
    row, change = OPTIONS[name], f"{company} {name} {value}".strip()
    found = read(line(model, change), world_size=MODELS[model].ranks)
    if found.errors or value_of(found.config, row.target) == value_of(before.config, row.target):
        return None
    _legal[name][company, value] = None
    reason = _said(found, name)
    return Tried(name, change, company, reason, "" if reason else _difference(model, name, company, found))


def _values(row: Flag) -> Iterable[str]:
    """Near the default first."""
    default: Any = row.default
    if isinstance(default, int | float) and not isinstance(default, bool) and row.type is not None:
        yield from (str(type(default)(default * factor)) for factor in (2, 0.5, 4) if default * factor)
    yield from typed_values(row)


def _said(found: Reading, name: str) -> str:
    return next((one.reason or one.status for one in outcomes(found) if one.flag == name and one.status == IGNORED), "")


def _difference(model: str, name: str, company: str, found: Reading) -> str:
    """Beginning with the part that the option changed beside another model."""
    parts = dict.fromkeys([*([_changed[name]] if name in _changed else []), *PARTS])
    part = next((part for part in parts if _part(model, company, part) != str(PARTS[part](found.config))), "")
    if part:
        _changed[name] = part
    return part
