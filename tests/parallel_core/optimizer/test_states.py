"""Treatment of each parameter by the optimizer (rule, weight decay, learning rate), and the states that it has, as a
plan."""

from collections import Counter

import pytest

from parallel_core.blocks import stage_chunks
from parallel_core.costs import StagePlan
from parallel_core.costs.memory import memory
from parallel_core.optimizer import plan_states, treatment
from tests.support.engine import TINY, config_of

MODEL = f"{TINY} --untie-embeddings-and-output-weights --qk-layernorm"


def treated(flags: str) -> dict[str, tuple]:
    """{parameter: (update rule, whether it decays, whether it has the decoupled learning rate)} of the model."""
    config = config_of(f"{MODEL} {flags}", 1)
    specs = StagePlan(config, 0).parameters
    found = {spec.name: treatment(spec, config.optimizer_config) for spec in specs}
    return {name: (t.rule, t.is_decayed, t.has_decoupled_lr) for name, t in found.items()}


def test_embedding_and_output_layer_have_their_own_rate():
    """--decoupled-lr is the learning rate of the word embedding and the output layer, and of no other parameter."""
    own = {name for name, (_, _, own) in treated("--decoupled-lr 1e-4").items() if own}
    assert own == {"embedding.word_embeddings.weight", "output_layer.weight"}
    assert not any(own for _, _, own in treated("").values())


def test_muon_has_the_matrices_of_the_layers_and_the_positions():
    """--optimizer muon updates every two-dimensional parameter but the word embedding and the output layer by Muon, as
    in Megatron, the others by Adam."""
    rules = Counter(rule for rule, _, _ in treated("--optimizer muon").values())
    matrices = {name for name, (rule, _, _) in treated("--optimizer muon").items() if rule == "muon"}
    layers = ("self_attention.linear_qkv", "self_attention.linear_proj", "mlp.linear_fc1", "mlp.linear_fc2")
    names = {f"decoder.layers.{n}.{layer}.weight" for n in range(2) for layer in layers}
    assert matrices == names | {"embedding.position_embeddings.weight"} and set(rules) == {"adam", "muon"}


def test_which_parameters_decay():
    """Matrices decay by default; the head norms, too, by either of two flags; with --no-weight-decay-params all but
    parameters whose names end as listed."""
    usual = {name for name, (_, decays, _) in treated("").items() if decays}
    head_norms = {name for name in treated("") if "q_layernorm" in name or "k_layernorm" in name}
    assert usual and head_norms and not usual & head_norms
    for flag in ("--apply-wd-to-qk-layernorm", "--no-weight-decay-cond-type apply_wd_to_qk_layernorm"):
        assert {name for name, (_, decays, _) in treated(flag).items() if decays} == usual | head_norms
    listed = {
        name for name, (_, decays, _) in treated("--no-weight-decay-params fc1.weight bias").items() if not decays
    }
    assert listed == {name for name in treated("") if name.endswith(("fc1.weight", "bias"))}


WIDER = "--use-mup --mup-base-hidden-size 16 --init-method-std 0.01"


@pytest.mark.parametrize(
    ("flags", "matrices", "others", "outer"),
    [
        ("", 0.5, 1, 1),
        ("--optimizer sgd", 1, 2, 2),
        ("--optimizer lion", 0.5, 1, 1),
        ("--optimizer muon", 1, 1, 1),
        ("--optimizer sgd --decoupled-lr 1e-4", 1, 2, 1),
    ],
)
def test_mup_has_a_factor_for_each_parameter(flags, matrices, others, outer):
    """muP's factor of the learning rate at twice the base width: for the layers' matrices, for vectors and learned
    positions (`others`), for embedding and output layer (`outer`), by optimizer."""
    config = config_of(f"{MODEL} {WIDER} {flags}", 1)
    assert config.optimizer_config.width_multiplier == 2
    for spec in StagePlan(config, 0).parameters:
        is_matrix = spec.name.startswith("decoder") and len(spec.shape) == 2
        wanted = outer if spec.role == "embedding or output" else matrices if is_matrix else others
        assert treatment(spec, config.optimizer_config).rate_factor == wanted, spec.name


@pytest.mark.parametrize(
    ("flags", "matrix", "projection", "embedding", "scales"),
    [
        (WIDER, 0.01 / 2**0.5, 0.01 / 2**0.5 / 2, 0.01, (1, 0.5, 1 / 8)),
        (f"{WIDER} --mup-output-mult 3 --mup-embedding-mult 7", 0.01 / 2**0.5, 0.01 / 2**0.5 / 2, 0.01, (7, 3, 1 / 8)),
        (f"{WIDER} --mup-base-head-dim 16", 0.01 / 2**0.5, 0.01 / 2**0.5 / 2, 0.01, (1, 0.5, 4 / 8)),
        (f"{WIDER} --mup-attn-scale-power 0.5", 0.01 / 2**0.5, 0.01 / 2**0.5 / 2, 0.01, (1, 0.5, 8**-0.5)),
        ("--use-mup --init-method-std 0.01", 0.01, 0.005, 0.01, (1, 1, 1 / 8)),
        (f"{WIDER} --embedding-init-method-std 0.5", 0.01 / 2**0.5, 0.01 / 2**0.5 / 2, 0.5, (1, 0.5, 1 / 8)),
        ("--mup-base-hidden-size 16 --init-method-std 0.01", 0.01, 0.005, 0.01, (1, 1, None)),
    ],
)
def test_mup_has_initial_values_and_scales(flags, matrix, projection, embedding, scales):
    """muP divides initial standard deviations by the root of the width's factor, except in embedding and output layer,
    and scales embedding, logits and attention scores; all as Megatron computes them from these flags (heads have 8
    channels)."""
    config = config_of(f"{MODEL} {flags}", 1)
    model = config.model_config
    (chunk,) = stage_chunks(model, 0)
    initial = {name: spec.initial for name, spec in chunk.parameters().items()}
    assert model.kv_channels == 8 and model.num_layers == 2
    for name, std in (
        ("decoder.layers.0.self_attention.linear_qkv.weight", matrix),
        ("decoder.layers.0.mlp.linear_fc1.weight", matrix),
        ("decoder.layers.1.mlp.linear_fc2.weight", projection),
        ("embedding.word_embeddings.weight", embedding),
        ("embedding.position_embeddings.weight", embedding),
        ("output_layer.weight", embedding),
    ):
        assert initial[name].std == pytest.approx(std), name
    assert (model.scales.embedding, model.scales.logits, model.scales.attention) == pytest.approx(scales)


@pytest.mark.parametrize(
    ("flags", "matrix", "other"),
    [
        ("", 8, 8),
        ("--optimizer sgd", 4, 4),
        ("--optimizer sgd --sgd-momentum 0", 0, 0),
        ("--bf16 --optimizer sgd --sgd-momentum 0", 4, 4),
        ("--optimizer lion", 4, 4),
        ("--bf16 --optimizer lion", 8, 8),
        ("--optimizer muon", 4, 8),
        ("--o2-optimizer", 4, 4),
        ("--use-precision-aware-optimizer --exp-avg-dtype bf16", 6, 6),
        ("--optimizer PmAdamW", 12, 12),
        ("--bf16", 12, 12),
        ("--bf16 --optimizer muon", 8, 12),
    ],
)
def test_bytes_of_states(flags, matrix, other):
    """Bytes of optimizer states for an element of a matrix and of other parameters, by optimizer and types; with the
    distributed optimizer each of two ranks has half."""
    for shared, world in (("", 1), ("--use-distributed-optimizer", 2)):
        config = config_of(f"{MODEL} --global-batch-size 4 {flags} {shared}", world)
        wanted = 0
        for plan, kept in StagePlan(config, 0).residences:
            for entry, run in plan.entries_in(kept.owned):
                is_matrix = len(entry.spec.shape) == 2 and entry.spec.role in (None, "positions")
                wanted += run.size * (matrix if is_matrix else other)
            states = plan_states(plan, kept.owned, config.optimizer_config)
            assert all(span.size for state in states.values() for span in state.spans)
        padding = memory(StagePlan(config, 0)).optimizer_states - wanted
        assert 0 <= padding <= 0.05 * wanted
