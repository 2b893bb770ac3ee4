"""No option is silent: a second legal value changes the plan, the costs, or what a run does and says, or it is reported
as without effect; beside each of six models. Options that act beside the first take turns in the runs of the other
models on one rank; `-m exhaustive` runs each beside all.
"""

from functools import cache
from tempfile import TemporaryDirectory
from typing import NamedTuple
from zlib import crc32

import pytest

from parallel_core.config.tree import PUBLIC
from tests.support.distributed import run
from tests.support.effects.models import MODELS, line
from tests.support.effects.search import NEVER_LEGAL, OPTIONS, Tried, tries
from tests.support.effects.step import figures, write_corpora
from tests.support.printed.outcomes import recorded

EXCEPTIONS = {
    "--distributed-timeout-minutes": "no rank is late",
    "--exit-duration-in-mins": "the run takes seconds",
    "--exit-signal-handler": "nobody sends a signal",
    "--check-for-nan-in-loss-and-grad": "no gradient is infinite",
    "--no-save-rng": "it is a line of a manifest that repeats the flag, too",
    "--no-check-for-nan-in-loss-and-grad": "no gradient is infinite",
    "--overwrite-save": "the folder is empty",
    "--on-save-failure": "no save fails",
    "--resume-training": "there is nothing to resume",
    "--use-checkpoint-args": "there is no checkpoint",
    "--max-position-embeddings": "the longest sequence, of models without learned positions",
    "--legacy-tokenizer": "these runs' tokenizer has no files",
    **dict.fromkeys(
        ("--is-instruction-dataset", "--train-mode", "--stage", "--sft"), "these runs build a GPT's data set"
    ),
    "--collectives": "its one legal value is the default here",
    "--enable-gmm-safe-tokens": "every expert has tokens",
    "--drop-remainder": "no pass over the data ends within a batch",
    "--no-drop-remainder": "no pass over the data ends within a batch",
    "--account-for-embedding-in-pipeline-split": "of two stages the first has the odd layer, one less and one more",
    "--microbatch-group-size-per-virtual-pipeline-stage": "all micro-batches are in one group",
    "--overlap-param-gather": "when messages are sent",
    "--no-overlap-p2p-communication": "when messages are sent",
    "--threads": "how fast it is",
    "--num-workers": "how fast it is",
    "--no-mmap-bin-files": "how fast it is",
}
"""Options of which such a run shows nothing -> why; their own tests show it."""


class Seen(NamedTuple):
    """An option beside a model."""

    option: str
    change: str
    where: str
    """It is seen in: a part of the plan, or a figure of a run; empty if nowhere."""
    reason: str
    """Why it has no effect, as the user is told."""


def searched(backend, model: str) -> list[Tried]:
    return tries(model)


ALONE = [name for name, model in MODELS.items() if model.ranks == 1]


def not_run(model: str, is_whole: bool) -> set[str]:
    """Options of which a run beside this model says nothing new: exceptions that the first model's runs did not show,
    beside several ranks what was seen beside another model, on one rank what is another model's turn."""
    first, *others = ALONE
    if model == first:
        return set()
    before = observed(first)
    silent = {one.option for one in before if not (one.where or one.reason)}
    if model in others:
        acting = [] if is_whole else [one.option for one in before if one.where]
        others_turns = {option for option in acting if others[crc32(option.encode()) % len(others)] != model}
        return (silent & EXCEPTIONS.keys()) | others_turns
    return (silent & EXCEPTIONS.keys()) | {one.option for other in ALONE for one in observed(other) if one.where}


@cache
def observed(model: str, is_whole: bool = False) -> list[Seen]:
    """Every option beside a model; all of them are run, if `is_whole`, or those whose turn it is."""
    found, known = run(1, searched, model)[0], not_run(model, is_whole)
    unsaid = [one for one in found if not (one.reason or one.part or one.option in known)]
    companies = sorted({one.company for one in unsaid})
    lines = [line(model, change) for change in (*companies, *(one.change for one in unsaid))]
    with TemporaryDirectory() as folder:
        write_corpora(folder)
        runs = list(zip(*run(MODELS[model].ranks, figures, lines, folder), strict=True))
    before = dict(zip(companies, runs, strict=False))
    figure = {
        one.option: _differs(before[one.company], after)
        for one, after in zip(unsaid, runs[len(companies) :], strict=True)
    }
    return [
        Seen(one.option, one.change, one.part or figure.get(one.option, ""), one.reason)
        for one in found
        if one.reason or one.part or one.option not in known
    ]


def _differs(before: tuple[dict[str, str], ...], after: tuple[dict[str, str], ...]) -> str:
    """The first figure that differs on a rank."""
    names = (
        name
        for one, other in zip(before, after, strict=True)
        for name in {**one, **other}
        if one.get(name) != other.get(name)
    )
    return next(names, "")


WHOLE = [pytest.param(model, True, marks=pytest.mark.exhaustive) for model in ALONE[1:]]


@pytest.mark.parametrize(("model", "is_whole"), [*((model, False) for model in MODELS), *WHOLE])
def test_a_second_value_is_seen_or_reported(model, is_whole):
    """Each option's second value beside a model is seen, reported as without effect, or in EXCEPTIONS."""
    seen = observed(model, is_whole)
    assert [one.change for one in seen if not (one.where or one.reason or one.option in EXCEPTIONS)] == []


def test_every_option_is_tried():
    """Beside one of the models at least."""
    assert OPTIONS.keys() - NEVER_LEGAL.keys() == {one.option for model in MODELS for one in observed(model)}


def test_exceptions_are_few_and_needed():
    """EXCEPTIONS has at most 30 options, each of which shows nothing beside some model."""
    assert len(EXCEPTIONS) <= 30
    silent = {one.option for model in MODELS for one in observed(model) if not (one.where or one.reason)}
    assert EXCEPTIONS.keys() - silent == set()


DOCUMENTED = sorted({row.test.partition("[")[2].rstrip("]") for row in recorded() if "test_effects.py" in row.test})
"""Fields of which the table of the documents' items says that they act, and that this file shows it."""


@pytest.mark.parametrize("field", DOCUMENTED)
def test_an_option_is_seen_to_act(field):
    """One of its flags changes the run of one of the models."""
    names = {name for name, row in OPTIONS.items() if PUBLIC[row.target] == field}
    assert any(one.where for model in MODELS for one in observed(model) if one.option in names)
