"""Generators of schedules: each result passes the checker, for all sizes, and keeps the activations that its paper
says."""

from fractions import Fraction

import pytest

from parallel_core.config import ParallelConfig
from parallel_core.schedules import (
    GENERATORS,
    TIMED,
    Backward,
    Exchange,
    Forward,
    Pair,
    Placement,
    Transfer,
    WeightGrad,
    check,
    combined_1f1b,
    communicate,
    dualpipe_v,
    forward_only,
    interleaved,
    one_f_one_b,
    zb_v,
)

STAGES, MICRO_BATCHES, CHUNKS = range(1, 9), range(1, 33), range(1, 5)

KEPT = {
    "gpipe": lambda stages, micro_batches, stage: micro_batches,
    "1f1b": lambda stages, micro_batches, stage: min(stages - stage, micro_batches),
    "zb-h1": lambda stages, micro_batches, stage: min(stages, micro_batches),
    "zb-h2": lambda stages, micro_batches, stage: min(2 * stages - 1, micro_batches),
    "zb-1p": lambda stages, micro_batches, stage: min(stages, micro_batches),
    "zb-2p": lambda stages, micro_batches, stage: min(2 * stages, micro_batches),
}
"""Schedule -> function of (stages, micro-batches, stage) to the most activations that the stage keeps."""


@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize("name", KEPT)
def test_every_size_without_chunks_is_right_and_frugal(name, stages):
    """Schedules without virtual stages pass the checker for each number of micro-batches, and each stage keeps exactly
    as many activations as the paper says."""
    for micro_batches in MICRO_BATCHES if name not in TIMED else (1, 2, stages, 2 * stages, 3 * stages + 1):
        kept = check(communicate(GENERATORS[name](stages, micro_batches)), micro_batches)
        assert kept == [KEPT[name](stages, micro_batches, stage) for stage in range(stages)], micro_batches


@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("stages", STAGES)
def test_every_size_of_interleaving_is_right_and_frugal(stages, chunks):
    """Interleaved 1F1B of whole rounds of micro-batches passes the checker; a stage keeps the activations of its
    warm-up and one more."""
    for micro_batches in range(stages, 33, stages):
        placement = Placement(stages, chunks)
        kept = check(communicate(interleaved(stages, micro_batches, chunks), placement), micro_batches, placement)
        warm_up = [2 * (stages - 1 - stage) + (chunks - 1) * stages for stage in range(stages)]
        assert kept == [min(before + 1, micro_batches * chunks) for before in warm_up], micro_batches


@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("stages", STAGES)
def test_every_size_of_combined_1f1b_is_right_and_keeps_one_more(stages, chunks):
    """Combined 1F1B passes the checker, where a pair of forward and backward needs both inputs before it starts; a
    stage keeps one activation more than interleaved 1F1B, and after its warm-up every forward is in a pair."""
    for micro_batches in MICRO_BATCHES if chunks == 1 else range(stages, 33, stages):
        placement, own = Placement(stages, chunks), micro_batches * chunks
        entries = combined_1f1b(stages, micro_batches, chunks)
        kept = check(communicate(entries, placement), micro_batches, placement)
        warm_up = [min(2 * (stages - 1 - stage) + (chunks - 1) * stages + 1, own) for stage in range(stages)]
        assert kept == [min(before + 1, own) for before in warm_up], micro_batches
        pairs = [sum(isinstance(entry, Pair) for entry in stage) for stage in entries]
        assert pairs == [own - before for before in warm_up]


@pytest.mark.parametrize("stages", range(2, 9))
def test_interleaving_in_larger_groups_is_right(stages):
    """Interleaved 1F1B in groups of any size whose rest is empty or not below the number of stages, as Megatron allows,
    passes the checker."""
    for micro_batches in MICRO_BATCHES:
        for group in range(stages, micro_batches + 1, 3):
            if micro_batches % group == 0 or micro_batches % group >= stages:
                placement = Placement(stages, 2)
                check(communicate(interleaved(stages, micro_batches, 2, group), placement), micro_batches, placement)


@pytest.mark.parametrize("stages", range(2, 9))
def test_every_size_of_a_folded_pipeline_is_right_and_frugal(stages):
    """ZB-V passes the checker, and no stage keeps more than 2 p activations of half a stage, as much as 1F1B's first
    stage."""
    placement = Placement(stages, 2, folded=True)
    for micro_batches in (1, 2, stages - 1, stages, stages + 1, 2 * stages - 1, 3 * stages + 1):
        kept = check(communicate(zb_v(stages, micro_batches), placement), micro_batches, placement)
        assert max(kept) <= 2 * min(stages, micro_batches)


@pytest.mark.parametrize("stages", range(2, 9))
@pytest.mark.parametrize(("name", "share"), [("v-half", 1), ("v-min", Fraction(2, 3))])
def test_every_size_of_a_building_block_is_right_and_keeps_a_part(name, share, stages):
    """V-Half and V-Min pass the checker and keep at most p and 2p/3 activations of half a stage (ZB-V: 2p), and up to
    8/3 more."""
    placement = Placement(stages, 2, folded=True)
    for micro_batches in (1, 2, stages, 2 * stages + 1):
        entries = GENERATORS[name](stages, micro_batches)
        kept = check(communicate(entries, placement), micro_batches, placement)
        assert max(kept) <= share * stages + Fraction(8, 3)


@pytest.mark.parametrize("stages", range(2, 9))
def test_every_size_of_dualpipe_v_is_right_and_frugal(stages):
    """DualPipeV passes the checker from 2p - 1 micro-batches on and keeps 2p + 1 activations of half a stage; each
    stage has as many pairs as DeepSeek's steps 4 and 5, and separate weight gradients as in steps 3, 6 and 7."""
    placement = Placement(stages, 2, folded=True)
    for micro_batches in range(2 * stages - 1, 5 * stages):
        entries = dualpipe_v(stages, micro_batches)
        kept = check(communicate(entries, placement), micro_batches, placement, some_whole=True)
        assert max(kept) == 2 * stages + 1
        for stage, own in enumerate(entries):
            behind, steady = stages - 1 - stage, micro_batches - 2 * stages + stage + 1
            assert sum(isinstance(entry, Pair) for entry in own) == 2 * steady + behind - (not behind)
            assert sum(isinstance(entry, WeightGrad) for entry in own) == 2 * behind + stage + 1


def test_dualpipe_v_goes_in_deepseeks_order():
    """DualPipeV for two stages and four micro-batches is in the order of DeepSeek's program: all actions of the first
    stage, the middle and the end of the second's."""
    first, last = dualpipe_v(2, 4)
    assert first[:7] == [
        Forward(0),
        Forward(1),
        Forward(2),
        Forward(0, 1),
        Backward(0, 1),
        WeightGrad(0, 1),
        Forward(1, 1),
    ]
    assert first[7:11] == [
        Pair(Forward(3), Backward(1, 1)),
        Pair(Forward(2, 1), Backward(0)),
        Backward(2, 1),
        Pair(Forward(3, 1), Backward(1)),
    ]
    assert first[11:] == [Backward(3, 1), Backward(2), WeightGrad(2), Backward(3), WeightGrad(3)]
    assert last[4:7] == [Forward(2), Backward(0, 1), Pair(Forward(2, 1), Backward(0))]
    assert last[-6:] == [*(Backward(m, chunk) for m in (2, 3) for chunk in (1, 0)), WeightGrad(3, 1), WeightGrad(3)]


@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize("chunks", CHUNKS)
def test_evaluation_takes_any_size(stages, chunks):
    """`forward_only` passes the checker for any number of micro-batches, stages and chunks, straight or folded, and
    keeps no activations."""
    for micro_batches in (*range(1, 10), 16, 31):
        for placement in (Placement(stages, chunks), Placement(stages, chunks, folded=True)):
            schedule = communicate(forward_only(stages, micro_batches, chunks), placement)
            assert check(schedule, micro_batches, placement, backward=False) == [0] * stages


def test_interleaving_goes_in_megatrons_order():
    """Interleaved 1F1B has the order of Megatron's documented example: 2 stages, 5 micro-batches, 2 chunks, groups of
    3."""
    last = interleaved(2, 5, 2, 3)[1]
    forwards = [(action.micro_batch, action.chunk) for action in last if isinstance(action, Forward)]
    assert forwards == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1), (3, 0), (4, 0), (3, 1), (4, 1)]
    assert last[:6] == [Forward(0), Forward(1), Forward(2), Forward(0, 1), Backward(0, 1), Forward(1, 1)]


def test_zero_bubble_puts_weight_gradients_off_by_the_stage():
    """ZB-H1's first stage computes each weight gradient at once; the last of two stages leaves one for the end."""
    first, last = GENERATORS["zb-h1"](2, 2)
    assert first == [Forward(0), Forward(1), Backward(0), WeightGrad(0), Backward(1), WeightGrad(1)]
    assert last == [Forward(0), Backward(0), Forward(1), Backward(1), WeightGrad(0), WeightGrad(1)]


def test_what_is_made_at_the_same_time_is_exchanged_at_the_same_place():
    """`communicate` lets the last of two stages receive its second input behind its first forward, in the place where
    the first stage sends it."""
    second, result = Forward(1), Backward(0)
    _, last = communicate(one_f_one_b(2, 2))
    assert last[1:5] == [
        Forward(0),
        Exchange((), (Transfer(second, second, 0),)),
        result,
        Exchange((Transfer(result, result, 0),)),
    ]


def test_the_last_stage_hands_over_to_the_first():
    """The last stage sends chunk 0's result to the first stage's chunk 1 with virtual stages, and gradients go the
    other way."""
    first, last = communicate(interleaved(2, 2, 2), Placement(2, 2))
    received = {transfer for action in first if isinstance(action, Exchange) for transfer in action.receives}
    assert Transfer(Forward(0, 0), Forward(0, 1), 1) in received
    sent = {transfer for action in first if isinstance(action, Exchange) for transfer in action.sends}
    assert Transfer(Backward(0, 1), Backward(0, 0), 1) in sent
    assert all(transfer.peer == 0 for action in last if isinstance(action, Exchange) for transfer in action.sends)


def test_stages_that_wait_for_each_other_are_refused():
    """`communicate` refuses stages that each need the other's result first."""
    with pytest.raises(AssertionError, match="waits for another"):
        communicate([[Backward(0), Forward(0)], [Forward(0), Backward(0)]])


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ({}, "1f1b"),
        ({"virtual_pipeline_model_parallel_size": 1}, "1f1b"),
        ({"virtual_pipeline_model_parallel_size": 2}, "interleaved"),
        ({"pipeline_schedule": "zb-h1"}, "zb-h1"),
    ],
)
def test_the_schedule_that_is_not_named(asked, name):
    """The default schedule is interleaved 1F1B with more than one virtual stage and 1F1B otherwise, as in Megatron;
    --pipeline-schedule names another."""
    assert ParallelConfig(**asked).schedule_name == name
