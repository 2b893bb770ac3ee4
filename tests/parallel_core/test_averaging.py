"""The factors of averaging, in one home."""

from hypothesis import given
from hypothesis import strategies as st

from parallel_core.averaging import Averaging, MicroBatchWeight

counts = st.lists(st.lists(st.integers(1, 50), min_size=3, max_size=3), min_size=1, max_size=4)


@given(counts, st.booleans(), st.booleans())
def test_seeds_and_scale_give_the_two_rules(replicas, per_token, is_mean):
    """What token j of micro-batch k of replica r weighs in the gradient, in the words of Megatron's documentation."""
    averaging = Averaging(per_token=per_token, micro_batches=3, replicas=len(replicas))
    total = sum(map(sum, replicas))
    for micro_batches in replicas:
        for tokens in micro_batches:
            seed = averaging.seed(MicroBatchWeight(tokens, is_mean))
            weight_of_a_token = seed / (tokens if is_mean else 1) * averaging.gradient_scale(total)
            expected = 1 / total if per_token else 1 / (tokens * 3 * len(replicas))
            assert abs(weight_of_a_token - expected) < 1e-12


def test_micro_batches_without_a_token_that_counts():
    """Nothing is divided by zero."""
    for per_token in (True, False):
        averaging = Averaging(per_token=per_token, micro_batches=1, replicas=1)
        assert averaging.seed(MicroBatchWeight(0.0, is_mean=False)) * averaging.gradient_scale(0.0) == 1.0
