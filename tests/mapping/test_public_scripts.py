"""Flags of public scripts that ask in other words for an available result, or for the nearest one, which is then
said."""

from __future__ import annotations

import pytest

from mapping.explain import as_text
from parallel_core.blocks import stage_chunks
from parallel_core.blocks.linears import linears
from parallel_core.config.tree import path_of
from tests.support.mapping.lines import reading
from tests.support.mapping.variations import value_of


def _linears(found):
    """(path, linear) of each linear of a reading's first stage."""
    return linears(stage_chunks(found.config.model_config, 0)[0].decoder, "decoder")


@pytest.mark.parametrize(
    "change, field, value",
    [
        ("--use-legacy-models", "num_experts", None),
        ("--o2-optimizer", "exp_avg_dtype", "bf16"),
        ("--o2-optimizer", "exp_avg_sq_dtype", "bf16"),
        ("--o2-optimizer", "use_precision_aware_optimizer", True),
        ("--use-precision-aware-optimizer --exp-avg-sq-dtype bf16", "exp_avg_sq_dtype", "bf16"),
        ("--bf16 --use-precision-aware-optimizer --main-grads-dtype bf16", "accumulate_allreduce_grads_in_fp32", False),
        ("--optimizer mint.AdamW", "optimizer_type", "adam"),
        ("--optimizer Adam", "decoupled_weight_decay", False),
        ("--optimizer AdamWeightDecay", "adam_bias_correction", False),
        ("--optimizer PmAdamW", "pma_fused_algo", "ema"),
        ("--optimizer dist_muon", "optimizer_type", "muon"),
        ("--optimizer dist_muon", "zero_stage", 1),
        ("--optimizer muon --muon-use-nesterov", "muon_nesterov", True),
        ("--optimizer muon --muon-no-split-qkv", "muon_split_qkv", False),
        ("--no-weight-decay-cond-type apply_wd_to_qk_layernorm", "apply_wd_to_qk_layernorm", True),
        ("--bf16 --o2-gradient", "accumulate_allreduce_grads_in_fp32", False),
        ("--tokenizer-kwargs use_fast False", "tokenizer_kwargs", ["use_fast", "False"]),
        ("--no-check-for-nan-in-loss-and-grad --check-for-nan-in-loss-and-grad", "check_for_nan_in_grad", True),
        ("--no-drop-remainder --drop-remainder", "drop_remainder", True),
        ("--disable-bias-linear --add-bias-linear", "mlp_has_bias", True),
        ("--bucket-size 4096", "bucket_size", 4096),
        ("--swiglu --fc-type up_down", "hidden_act", "silu"),
        ("--squared-relu --fc-type up_down", "hidden_act", "squared_relu"),
    ],
)
def test_another_spelling_fills_the_field(change, field, value):
    """A flag of another fork fills the config field."""
    found = reading(change)
    assert found.errors == [] and value_of(found.config, path_of(field)) == value


SWITCH = "--moe-router-load-balancing-type sinkhorn --moe-router-topk 1"


def test_the_older_classes_had_one_kind_of_experts():
    """--use-legacy-models is accepted with experts only as the older classes had them: sinkhorn top-1, no biases, which
    equals Megatron-Core's."""
    found = reading(f"--use-legacy-models --num-experts 4 --disable-bias-linear {SWITCH}")
    assert found.errors == [] and found.config == reading(f"--num-experts 4 --disable-bias-linear {SWITCH}").config
    for other in (SWITCH, "--disable-bias-linear", f"--disable-bias-linear {SWITCH} --moe-router-topk 2"):
        (error,) = reading(f"--use-legacy-models --num-experts 4 {other}").errors
        assert error.startswith("--use-legacy-models: has experts that are routed as by --moe-router-load-balancing")


def test_hunyuans_spec_has_constants_of_its_own():
    """Hunyuan's --spec sets its constants: rotary base scaled by alpha 1000 (heads of 16 channels), head norms after
    the rotation, and --scale-depth behind feed-forward blocks alone."""
    flags = "--position-embedding-type rope --qk-layernorm --scale-depth 1.4"
    found = reading(f"{flags} --rotary-base 500 --spec mindspeed_llm.tasks.models.spec.hunyuan_spec layer_spec")
    model = found.config.model_config
    assert found.errors == [] and model.qk_norm_after_rotary
    assert model.rotary_base == pytest.approx(10000 * 1000 ** (16 / 14)) and model.scales.residual == 1
    assert model.scales.mlp_residual == pytest.approx([1, 0.7])


def test_eight_bits_are_computed_in_sixteen_and_a_run_says_so_when_it_starts(capsys):
    """--fp8-format without --fp8-simulate computes in bf16 and is ignored with a line; with it linears have the recipe,
    but in the first and last layer on request; --fp4-format is refused."""
    found = reading("--bf16 --fp8-format hybrid --fp8-recipe blockwise")
    assert found.errors == [] and [*_linears(found)] == [*_linears(reading("--bf16"))]
    found.print_notes()
    printed = capsys.readouterr().out
    for flag in ("--fp8-format", "--fp8-recipe"):
        assert f"ignored: {flag}: no effect: products are computed in the type of --bf16" in printed
    assert "refused" not in as_text(found)
    simulated = reading("--bf16 --fp8-format hybrid --fp8-recipe blockwise --fp8-simulate --first-last-layers-bf16")
    simulated.print_notes()
    assert simulated.errors == [] and "ignored" not in capsys.readouterr().out
    assert {path.split(".")[2] for path, linear in _linears(simulated) if linear.recipe} == {"1", "2"}
    (error,) = reading("--bf16 --fp4-format e2m1").errors
    assert error.startswith("--fp4-format")


@pytest.mark.parametrize(
    "change, same",
    [
        (
            "--position-embedding-type rope --rope-scaling-type plm",
            "--position-embedding-type rope",
        ),
        (
            "--context-parallel-size 2 --context-parallel-algo adaptive_cp_algo",
            "--context-parallel-size 2 --context-parallel-algo megatron_cp_algo",
        ),
        (
            "--num-experts 4 --moe-model-type deepspeed_moe --moe-train-capacity-factor 1.1",
            "--num-experts 4 --moe-expert-capacity-factor 1.1 --moe-router-pre-softmax --norm-topk-prob "
            "--moe-token-drop-policy position",
        ),
        (
            "--num-experts 4 --moe-model-type deepspeed_moe --moe-router-topk 1",
            "--num-experts 4 --moe-expert-capacity-factor 1 --moe-router-pre-softmax --moe-router-topk 1 "
            "--moe-token-drop-policy position",
        ),
    ],
)
def test_the_nearest_is_taken_and_that_is_said(change, same):
    """A flag without its own implementation gives the config of the nearest one, with a note that names it."""
    found = reading(change, 2)
    assert found.errors == [] and found.config == reading(same, 2).config
    (note,) = found.notes
    flag, _, sentence = note.partition(": ")
    assert flag in change and sentence in as_text(found)


def test_dualpipe_v_is_run():
    """--schedules-method dualpipev is the schedule dualpipev, also with multi-token prediction, as DeepSeek-V3's
    scripts ask."""
    flags = "--pipeline-model-parallel-size 2 --schedules-method dualpipev --untie-embeddings-and-output-weights"
    flags += " --micro-batch-size 1 --global-batch-size 8 --position-embedding-type rope --mtp-num-layers 1"
    found = reading(flags, 2)
    assert found.errors == found.notes == [] and found.config.parallel_config.schedule_name == "dualpipev"


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ("--zero-bubble-v-schedule", "zb-v"),
        ("--enable-zero-bubble --zero-bubble-v-schedule --zero-bubble-v-schedule-mem-setup half", "v-half"),
        ("--zero-bubble-v-schedule --zero-bubble-v-schedule-mem-setup min", "v-min"),
        ("--enable-zero-bubble", "zb-1p"),
        ("--enable-zero-bubble --zero-bubble-max-pending-backward 2", "zb-1p"),
        ("--enable-zero-bubble --zero-bubble-max-pending-backward 4", "zb-2p"),
    ],
)
def test_zero_bubbles_flags_name_its_schedules(flags, name):
    """Flags of the zero-bubble authors' fork choose the schedules zb-1p, zb-2p, zb-v, v-half and v-min."""
    two = "--pipeline-model-parallel-size 2 --untie-embeddings-and-output-weights"
    found = reading(f"{two} --micro-batch-size 1 --global-batch-size 8 {flags}", 2)
    assert found.errors == [] and found.config.parallel_config.schedule_name == name


def test_other_numbers_of_pending_backwards_are_refused():
    """--zero-bubble-max-pending-backward must be once or twice the pipeline size."""
    (error,) = reading(
        "--pipeline-model-parallel-size 2 --enable-zero-bubble --zero-bubble-max-pending-backward 3", 2
    ).errors
    assert "--zero-bubble-max-pending-backward 3: must be once or twice --pipeline-model-parallel-size 2" in str(error)


@pytest.mark.parametrize("percent, rotating", [(0.51, 66), (0.5, 64), (0.76, 98)])
def test_an_odd_number_of_rotating_channels_is_rounded_up(percent, rotating):
    """--rotary-percent that gives an odd number of channels rotates one more, as in Megatron, which takes every second
    of int(head size x percent)."""
    from parallel_core.attention.rotary import Rotary

    found = reading(f"--position-embedding-type rope --kv-channels 128 --rotary-percent {percent}")
    assert found.errors == []
    rotary = Rotary.of(found.config.model_config)
    assert rotary.tables((range(4),))[0].shape == (4, rotating)


def test_an_alias_of_the_users_own_parser_counts_unless_it_is_at_its_default():
    """A user's own --bucket-size counts if given; at its default our flag's value stays."""
    from mapping.reading import read
    from tests.support.mapping.lines import line

    def provider(parser):
        parser.add_argument("--bucket-size", type=int, default=None)
        parser.add_argument("--profile-memory", action="store_true")
        return parser

    found = read([*line("--profile-with-memory"), "--bucket-size", "512"], provider, 1)
    training = found.config.training_config
    assert found.errors == [] and (training.bucket_size, training.profile_memory) == (512, True)
