"""The most that a stage keeps, by the schedule alone."""

from types import SimpleNamespace

import pytest

from parallel_core.costs.activations import _with_messages, enough_micro_batches
from parallel_core.schedules import GENERATORS, Forward, Placement, communicate, order
from parallel_core.schedules.actions import computes_of, frees, split_backwards

CASES = {name: Placement(4, 2 if name == "interleaved" else 1) for name in GENERATORS} | {
    "combined-1f1b": Placement(4, 2),
    **{name: Placement(4, 2, folded=True) for name in ("zb-v", "v-half", "v-min", "dualpipev")},
}
"""Schedule -> four stages with the chunks that it needs."""


def most(name: str, micro_batches: int) -> list[tuple[int, int]]:
    """The most forwards of each stage whose backward is not through, plus a hundredth for each hidden state on its way
    beside them; and the most of such hidden states."""
    found = []
    for actions in communicate(order(name, CASES[name], micro_batches, 4), CASES[name]):
        split, kept, moments = split_backwards(computes_of(actions)), 0, []
        for action, messages in _with_messages(actions):
            kept += 100 * isinstance(action, Forward)
            moments.append((kept + messages, messages))
            kept -= 100 * frees(action, split)
        found.append((max(moments)[0], max(count for _, count in moments)))
    return found


@pytest.mark.parametrize("micro_batches", [8, 12, 16, 24, 40])
@pytest.mark.parametrize("name", CASES)
def test_enough_micro_batches_stand_for_all(name, micro_batches):
    """With `enough_micro_batches` each stage of a schedule keeps as much at most as with all of a longer step."""
    parallel = SimpleNamespace(
        schedule_name=name, pipeline_model_parallel_size=4, placement=CASES[name],
        microbatch_group_size_per_virtual_pipeline_stage=4,
    )  # fmt: skip
    data = SimpleNamespace(micro_batch_num=micro_batches)
    enough = enough_micro_batches(SimpleNamespace(parallel_config=parallel, dataset_config=data))
    assert enough <= micro_batches and most(name, enough) == most(name, micro_batches)


@pytest.mark.parametrize("name", CASES)
def test_few_hidden_states_are_on_their_way(name):
    """A hidden state that was sent is counted no longer than the next computation, or pair of them, runs: of a long
    step's no more than five at once, however many it sends."""
    assert max(count for _, count in most(name, 40)) <= 5
