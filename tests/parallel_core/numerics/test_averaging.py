"""Averaging of losses and gradients: the factors at the seed, before and after the sum over replicas."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from parallel_core.numerics.averaging import Averaging, MicroBatchWeight
from parallel_core.numerics.loss_scale import ConstantLossScaler

counts = st.lists(st.lists(st.integers(1, 50), min_size=3, max_size=3), min_size=1, max_size=4)


@given(counts, st.booleans(), st.booleans(), st.sampled_from([None, 1.0, 3.0, 2.0**16]))
def test_seeds_and_scale_give_the_two_rules(replicas, per_token, is_mean, loss_scale):
    """Seed x factor before the sum x gradient scale gives each token Megatron's weight: 1 / all tokens per token, else
    1 / (tokens of its micro-batch x micro-batches x replicas); a loss scale multiplies the seed alone."""
    scaler = None if loss_scale is None else ConstantLossScaler(loss_scale)
    averaging = Averaging(per_token=per_token, micro_batches=3, replicas=len(replicas), loss_scaler=scaler)
    total = sum(map(sum, replicas))
    for micro_batches in replicas:
        for tokens in micro_batches:
            weight = MicroBatchWeight(tokens, is_mean)
            seed = averaging.seed(weight)
            assert abs(seed - (loss_scale or 1.0) * replace(averaging, loss_scaler=None).seed(weight)) <= 1e-12 * seed
            summed = seed / (tokens if is_mean else 1) * averaging.factor_before_sum
            weight_of_a_token = summed * averaging.gradient_scale(total)
            expected = 1 / total if per_token else 1 / (tokens * 3 * len(replicas))
            assert abs(weight_of_a_token - expected) < 1e-12


def test_replicas_average_before_they_sum_where_a_loss_scale_fills_the_range():
    """Gradients with a loss scale are divided by the replicas before their sum, as in Megatron, so that the sum does
    not overflow 16 bits; not so when averaging per token."""
    scaled = Averaging(per_token=False, micro_batches=1, replicas=4, loss_scaler=ConstantLossScaler(8.0))
    assert (scaled.factor_before_sum, scaled.gradient_scale(1.0)) == (1 / 4, 1 / 8)
    assert replace(scaled, per_token=True).factor_before_sum == 1.0


def test_micro_batches_without_a_token_that_counts():
    """A micro-batch without a token that counts divides nothing by zero."""
    for per_token in (True, False):
        averaging = Averaging(per_token=per_token, micro_batches=1, replicas=1)
        assert averaging.seed(MicroBatchWeight(0.0, is_mean=False)) * averaging.gradient_scale(0.0) == 1.0
