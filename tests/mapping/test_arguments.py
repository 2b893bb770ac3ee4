"""Arguments and config from a command line: fields, defaults, and Megatron's ways to call it."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from contextlib import nullcontext
from math import sqrt
from operator import attrgetter

import pytest

import mapping
from mapping import ConfigError, get_args, init_configs_from_args, initialize_megatron, parse_args
from mapping.arguments import GRACE_SECONDS
from mapping.reading import read
from parallel_core.config.base import gather_findings
from tests.support.assets import asset
from tests.support.mapping.lines import line, reading

MOE = "--num-experts 4 --moe-ffn-hidden-size 32"
PATCH = "--patch-tokenizer-type Qwen2Tokenizer"
FURTHER = "--position-embedding-type rope"
LOSS_FACTOR = "model_config.multi_token_prediction.loss_scaling_factor"
OTHER_NAME = "~num-layers --encoder-num-layers 4"


@pytest.mark.parametrize(
    "change, target, value",
    [
        ("--swiglu", "model_config.hidden_act", "swiglu"),
        ("--squared-relu", "model_config.hidden_act", "squared_relu"),
        ("--gelu-tanh", "model_config.hidden_act", "geglu_tanh"),
        ("", "model_config.hidden_act", "gelu"),
        ("--no-bias-gelu-fusion", "model_config.bias_gelu_fusion", False),
        ("--normalization RMSNorm --use-fused-rmsnorm", "model_config.normalization", "FusedRMSNorm"),
        ("--use-rotary-position-embeddings", "model_config.position_embedding_type", "rope"),
        ("--position-embedding-type rope", "model_config.use_rotary_embedding", True),
        ("--position-embedding-type rope --use-rope-scaling", "model_config.rope_scaling.type", "llama3"),
        ("--position-embedding-type rope --partial-rotary-factor 0.25", "model_config.rotary_percent", 0.25),
        ("--num-query-groups 2", "model_config.num_query_groups", 4),
        ("--group-query-attention --num-query-groups 2", "model_config.num_query_groups", 2),
        ("--disable-bias-linear --add-qkv-bias", "model_config.qkv_has_bias", True),
        ("--disable-bias-linear --add-qkv-bias", "model_config.out_proj_has_bias", False),
        ("--disable-bias-linear --add-dense-bias", "model_config.out_proj_has_bias", True),
        ("--no-post-layer-norm", "model_config.use_final_norm", False),
        ("--add-rmsnorm-offset", "model_config.apply_layernorm_1p", True),
        ("--input-embeds-norm", "model_config.scales.embedding", 8.0),
        ("--scale-depth 1.4", "model_config.scales.residual", 1.4 / sqrt(4)),
        (f"{OTHER_NAME} --scale-depth 1.4", "model_config.scales.residual", 1.4 / sqrt(4)),
        (f"{OTHER_NAME} --is-hybrid-model --mamba-num-groups 1", "model_config.hybrid.layer_pattern", "MMMM"),
        (f"{OTHER_NAME} {MOE} --first-k-dense-replace 1", "moe_config.moe_layer_freq", [0, 1, 1, 1]),
        ("--dim-model-base 16", "model_config.scales.logits", 0.25),
        ("--query-pre-attn-scalar 144", "model_config.scales.attention", 1 / 12),
        ("--bf16", "model_config.params_dtype", "bfloat16"),
        ("--fp16", "model_config.compute_dtype", "float16"),
        ("--bf16 --params-dtype torch.float32", "model_config.params_dtype", "float32"),
        ("--recompute-activations", "model_config.recompute_granularity", "selective"),
        ("--vocab-size 500", "model_config.vocab_size", 512),
        ("--vocab-size 500", "model_config.unpadded_vocab_size", 500),
        ("--vocab-size 512 --tokenizer-type NullTokenizer", "model_config.vocab_size", 640),
        ("--vocab-size 512 --tokenizer-type NullTokenizer --padded-vocab-size 512", "model_config.vocab_size", 512),
        ("--vocab-size 500 --make-vocab-size-divisible-by 1", "model_config.vocab_size", 500),
        ("--vocab-size 500 --extra-vocab-size 13", "model_config.vocab_size", 640),
        ("--fp16 --hysteresis 3", "training_config.loss_scale_hysteresis", 3),
        ("--fp16 --hysteresis 3", "training_config.loss_scale_factor", 2.0),
        ("--fp16 --loss-scale 0.5", "training_config.loss_scale", 0.5),
        ("--optimizer sgd", "optimizer_config.optimizer_type", "sgd"),
        ("--adam-beta2 0.95", "optimizer_config.betas", (0.9, 0.95)),
        ("--cp-comm-type a2a", "parallel_config.context_parallel_algo", "ulysses_cp_algo"),
        ("", "parallel_config.context_parallel_algo", "megatron_cp_algo"),
        (
            "--num-layer-list [[1,1],[1,1]] --pipeline-model-parallel-size 2 --virtual-pipeline-model-parallel-size 2",
            "parallel_config.num_layer_list",
            [[1, 1], [1, 1]],
        ),
        (
            "--use-megatron-fsdp --data-parallel-sharding-strategy no_shard --use-distributed-optimizer",
            "training_config.use_distributed_optimizer",
            False,
        ),
        ("--use-custom-fsdp --data-parallel-sharding-strategy optim_grads", "training_config.zero_stage", 2),
        ("--use-megatron-fsdp", "training_config.zero_stage", 3),
        ("--use-torch-fsdp2", "training_config.use_distributed_optimizer", True),
        (
            "--enable-shared-expert --shared-moe-ffn-hidden-size 96 --num-experts 4",
            "moe_config.moe_shared_expert_gate",
            True,
        ),
        (
            "--enable-shared-expert --shared-moe-ffn-hidden-size 96 --num-experts 4",
            "moe_config.moe_shared_expert_intermediate_size",
            96,
        ),
        (
            "--num-experts 4 --expert-model-parallel-size 2 --moe-comm-aux-loss-coeff 0.1 "
            "--pipeline-model-parallel-size 1",
            "moe_config.moe_router_num_groups",
            2,
        ),
        *(
            (f"{FURTHER} {change}", "model_config.multi_token_prediction.loss_scaling_factor", value)
            for change, value in (
                ("--num-nextn-predict-layers 1", 0.3),
                ("--num-nextn-predict-layers 1 --mtp-loss-scaling-factor 0.1", 0.1),
                ("--num-nextn-predict-layers 1 --mtp-loss-scale 0.1", 0.1),
                ("--mtp-num-layers 1", 0.1),
                ("--mtp-num-layers 1 --mtp-loss-scale 0.3", 0.3),
            )
        ),
        *(
            (f"{FURTHER} {change}", "model_config.multi_token_prediction.share_embedding_and_output_weight", value)
            for change, value in (
                ("--num-nextn-predict-layers 1", False),
                ("--num-nextn-predict-layers 1 --share-mtp-embedding-and-output-weight", True),
                ("--mtp-num-layers 1", True),
            )
        ),
        ("--profile-memory", "training_config.profile_memory", True),
        ("--profile-with-memory", "training_config.profile_memory", True),
        (f"{MOE} --first-k-dense-replace 1 --moe-layer-freq 1", "moe_config.moe_layer_freq", [0, 1, 1, 1]),
        (f"{MOE} --moe-layer-freq ([0]*1+[1]*1)*2", "moe_config.moe_layer_freq", [0, 1, 0, 1]),
        (f"{MOE} --n-shared-experts 2", "moe_config.moe_shared_expert_intermediate_size", 64),
        (
            f"{MOE} --n-shared-experts 2 --moe-shared-expert-intermediate-size 64",
            "moe_config.moe_shared_expert_intermediate_size",
            64,
        ),
        (f"{MOE} --moe-router-load-balancing-type softmax_topk", "moe_config.moe_router_pre_softmax", True),
        (
            f"{MOE} --moe-router-load-balancing-type aux_loss seq_aux_loss --moe-aux-loss-coeff 1e-2 1e-3",
            "moe_config.balancing_losses",
            {"aux_loss": 1e-2, "seq_aux_loss": 1e-3},
        ),
        (f"{MOE} --seq-aux", "moe_config.moe_router_load_balancing_type", "seq_aux_loss"),
        (f"{MOE} --moe-token-dispatcher-type flex", "moe_config.moe_token_dispatcher_type", "alltoall"),
        (
            "--tokenizer-type PretrainedFromHF --tokenizer-name-or-path x",
            "dataset_config.tokenizer_type",
            "PretrainedFromHF",
        ),
        ("--tokenizer-type PretrainedFromHF --tokenizer-name-or-path x", "dataset_config.tokenizer_model", "x"),
        (f"{PATCH} --load x", "dataset_config.tokenizer_model", "x"),
        (f"{PATCH} --tokenizer-type NullTokenizer", "dataset_config.tokenizer_type", "NullTokenizer"),
        ("--stage sft", "dataset_config.instruction.enabled", True),
        ("--lora-target-modules linear_qkv", "lora_config.lora_rank", 16),
        ("--lora-target-modules query_key_value dense", "lora_config.target_modules", ["linear_qkv", "linear_proj"]),
        (
            "--multi-latent-attention --kv-lora-rank 8 --lora-target-modules linear_qkv linear_kvb",
            "lora_config.target_modules",
            ["linear_q_proj", "linear_kv_down_proj", "linear_kv_up_proj"],
        ),
        ("", "lora_config.lora_rank", 0),
    ],
)
def test_a_flag_becomes_its_field(change, target, value):
    """Each change of the good command line gives the config field its value."""
    found = reading(change, world_size=2 if "pipeline" in change else 1)
    assert found.errors == []
    assert (
        attrgetter(target)(found.config) == pytest.approx(value)
        if isinstance(value, float)
        else (attrgetter(target)(found.config) == value)
    )


def test_vocabulary_padding_depends_on_the_layout():
    """The vocabulary is padded to a multiple of 128 x tensor-parallel size."""
    found = reading("--vocab-size 500 --tensor-model-parallel-size 4", world_size=4)
    assert found.config.model_config.vocab_size == 512
    assert reading("--vocab-size 513 --tensor-model-parallel-size 4", 4).config.model_config.vocab_size == 1024


def test_the_last_of_a_repeated_flag_counts():
    """`--seed 1 --seed 2` gives seed 2."""
    assert reading("--seed 1 --seed 2").config.training_config.seed == 2


def test_the_world_size_comes_from_the_launcher(monkeypatch):
    """RANK_SIZE and RANK_ID give world size, rank and data-parallel size."""
    monkeypatch.setenv("RANK_SIZE", "4")
    monkeypatch.setenv("RANK_ID", "3")
    args = parse_args(line("--tensor-model-parallel-size 2"))
    assert (args.world_size, args.rank, args.data_parallel_size) == (4, 3, 2)


def test_arguments_that_were_left_open_are_filled_in():
    """`parse_args` fills in derived arguments: padded vocabulary, types, sizes, iterations of the decay."""
    args = parse_args(line("--vocab-size 500 --bf16"))
    assert (args.padded_vocab_size, args.params_dtype, args.ffn_hidden_size, args.kv_channels, args.lr_decay_iters) == (
        512,
        "bfloat16",
        256,
        16,
        10,
    )


def test_a_namespace_of_megatrons_own_parser_is_enough_and_stays_as_it_is():
    """A namespace from Megatron's own parser, with other attributes too, gives a config and is not changed."""
    args = Namespace(
        num_layers=4,
        hidden_size=64,
        num_attention_heads=4,
        seq_length=64,
        padded_vocab_size=512,
        layernorm_epsilon=1e-6,
        micro_batch_size=2,
        add_bias_linear=False,
        something_else=1,
    )
    before = dict(vars(args))
    config = init_configs_from_args(args)
    assert config.model_config.norm_epsilon == 1e-6 and not config.model_config.qkv_has_bias
    assert config.dataset_config.batch_size == 2 and vars(args) == before


def test_a_users_own_flags_pass_through():
    """Flags of an extra_args_provider are parsed; a wrong value of one is an error with its name."""

    def extra(parser):
        group = parser.add_argument_group("mine")
        group.add_argument("--my-number", type=int, default=3)
        group.add_argument("--my-words", nargs="+")
        return parser

    args = parse_args(line("--my-words a b --bf16"), extra_args_provider=extra)
    assert (args.my_number, args.my_words, args.bf16) == (3, ["a", "b"], True)
    with pytest.raises(ConfigError, match="my-number"):
        parse_args(line("--my-number x"), extra_args_provider=extra)


def test_defaults_of_the_caller_hold_unless_the_flag_is_given():
    """args_defaults of `parse_args` count unless the command line gives the flag."""
    assert parse_args(line(), args_defaults={"seed": 7}).seed == 7
    assert parse_args(line("--seed 8"), args_defaults={"seed": 7}).seed == 8


def test_initialising_keeps_the_arguments_and_lists_what_is_ignored(monkeypatch, capsys):
    """`initialize_megatron` keeps the arguments for `get_args`, which fails before, and prints the ignored flags
    alone."""
    monkeypatch.setattr(mapping.arguments, "_global_args", None)
    with pytest.raises(ValueError, match="initialize_megatron"):
        get_args()
    args = initialize_megatron(argv=line("--no-persist-layer-norm --swiglu"))
    assert get_args() is args
    ignored = capsys.readouterr().out.strip()
    assert "--no-persist-layer-norm" in ignored and "--swiglu" not in ignored and len(ignored.splitlines()) == 1


@pytest.mark.parametrize("rank, lines", [("0", 2), ("1", 1), ("x", 1)])
def test_errors_end_every_rank_with_2_and_the_first_lists_them(monkeypatch, capsys, rank, lines):
    """Wrong flags end each rank with exit code 2; rank 0 prints all errors, the others wait first, since a launcher
    ends all ranks with the first that ends. A rank that is no number is an error that each such process prints."""
    waited = []
    monkeypatch.setenv("RANK_ID", rank)
    monkeypatch.setattr(time, "sleep", waited.append)
    with pytest.raises(SystemExit) as caught:
        initialize_megatron(argv=line("--lr x --hidden-size 65"))
    assert caught.value.code == 2 and waited == [GRACE_SECONDS] * (rank == "1")
    assert len(capsys.readouterr().err.splitlines()) == lines


def test_every_golden_command_line_means_what_megatron_resolved():
    """Each golden case's command line gives the arguments and the number of micro-batches that Megatron resolved."""
    for path in sorted(asset("golden").glob("*/config.json")):
        case = json.loads(path.read_text())
        args = parse_args([*case["megatron_cli"], "--padded-vocab-size", str(case["padded_vocab_size"])], world_size=1)
        config = init_configs_from_args(args)
        assert config.dataset_config.micro_batch_num == case["num_microbatches"]
        resolved = case["resolved_args"]
        for name, value in resolved.items():
            of_experts = name.startswith("moe_") and resolved["num_experts"] is None
            if value is not None and hasattr(args, name) and not of_experts and name != "num_query_groups":
                assert getattr(args, name) == value, (path, name)


def test_values_that_other_parsers_leave_as_text_are_read():
    """Values that a foreign parser leaves as text (lists, types, expressions such as ([1]*2)*2) are read from its
    namespace."""
    args = Namespace(
        num_layers=4,
        hidden_size=64,
        num_attention_heads=4,
        seq_length=64,
        padded_vocab_size=512,
        num_layer_list="1,3",
        pipeline_model_parallel_size=2,
        world_size=2,
        noop_layers="0,3",
        params_dtype="torch.bfloat16",
        moe_layer_freq="([1]*2)*2",
        profile_memory=True,
        bucket_size=100,
    )
    config = init_configs_from_args(args)
    assert (config.parallel_config.num_layer_list, config.parallel_config.noop_layers) == ([1, 3], [0, 3])
    assert (config.model_config.params_dtype, config.moe_config.moe_layer_freq) == ("bfloat16", [1, 1, 1, 1])
    assert (config.training_config.profile_memory, config.training_config.bucket_size) == (True, 100)


SMALL = dict(num_layers=4, hidden_size=64, num_attention_heads=4, seq_length=64, padded_vocab_size=512)


def test_all_mistakes_of_another_parsers_namespace_are_said_at_once():
    """Texts and types that cannot be read, and numbers out of range, are one error with a line for each, by flag."""
    wrong = dict(params_dtype="int7", embedding_dtype=int, moe_layer_freq="((", lr="fast", min_lr=-1.0)
    with pytest.raises(ConfigError) as caught:
        init_configs_from_args(Namespace(**SMALL, **wrong))
    starts = ["--params-dtype int7: must be `float32`", "--embedding-dtype <class 'int'>: must be `float32`"]
    starts += ["--moe-layer-freq ((: must be ", "--lr fast: must be a number", "--min-lr -1: must be at least 0"]
    assert all(error.startswith(start) for error, start in zip(caught.value.errors, starts, strict=True))


class Float16:
    """A type that prints as torch's."""

    def __str__(self):
        return "torch.float16"


def test_torchs_types_are_read():
    """Types of torch's in a namespace, another parser's or our own, are those that they print as."""
    config = init_configs_from_args(Namespace(**SMALL, params_dtype=Float16(), embedding_dtype=Float16()))
    assert (config.model_config.params_dtype, config.model_config.embedding_init_dtype) == ("float16", "float16")
    args = parse_args(line())
    args.params_dtype = Float16()
    assert init_configs_from_args(args).model_config.params_dtype == "float16"


@pytest.mark.parametrize(
    "given, target, value",
    [
        ({"num_experts": 4, "topk_group": 1}, "moe_config.moe_router_num_groups", None),
        ({"num_experts": 4, "moe_model_type": "deepspeed_moe"}, "moe_config.moe_router_norm_topk_prob", True),
        ({"num_experts": 4, "expert_model_parallel_size": 1, "moe_tp_extend_ep": True}, "moe_config.num_experts", 4),
        ({"enable_zero_bubble": True}, "parallel_config.pipeline_schedule", "zb-1p"),
        ({"pipeline_model_parallel_layout": "EttttL"}, "parallel_config.num_layer_list", [4]),
        ({"use_mup": True}, "model_config.scales.attention", 1 / 16),
        ({"mtp_num_layers": 1, "mtp_loss_scale": 0.5}, LOSS_FACTOR, 0.5),
        ({"mtp_num_layers": 1, "mtp_loss_scale": 0.3}, LOSS_FACTOR, 0.1),
        ({"num_nextn_predict_layers": 1, "mtp_loss_scale": 0.3}, LOSS_FACTOR, 0.3),
        ({"use_mup": True, "mup_base_hidden_size": 32}, "model_config.scales.logits", 0.5),
    ],
)
def test_what_another_parsers_namespace_lacks_is_not_given(given, target, value):
    """Arguments beside which another parser has not those that Megatron's flags go with have the same meaning."""
    with gather_findings():
        config = init_configs_from_args(Namespace(**SMALL, **given))
    assert attrgetter(target)(config) == value


@pytest.mark.parametrize(("window", "size"), [((4096, 0), 4096), ([8, -1], 8), ((-1, 0), None), ("16,0", 16), (5, 5)])
def test_a_window_is_a_pair_as_megatrons_parser_gives_it(window, size):
    """A window in another parser's namespace is the pair that Megatron's parser gives, text, or our own number."""
    config = init_configs_from_args(Namespace(**SMALL, window_size=window))
    assert config.model_config.sliding_window.size == size


@pytest.mark.parametrize(
    ("wrong", "start"),
    [
        ({"window_size": (4, 4)}, "--window-size (4, 4): must be `4096,0`"),
        ({"pipeline_model_parallel_layout": [["encoder"]]}, "--pipeline-model-parallel-layout [['encoder']]: must be "),
    ],
)
def test_wrong_objects_in_another_parsers_namespace_are_findings(wrong, start):
    """A pair that is no window, and a layout of other words, are errors with their flag."""
    with pytest.raises(ConfigError) as caught:
        init_configs_from_args(Namespace(**SMALL, **wrong))
    (error,) = caught.value.errors
    assert error.startswith(start)


def test_help_lists_the_flags_that_act(capsys):
    """--help shows the flags that act with their values, refused ones left out, and Megatron's default."""
    with pytest.raises(SystemExit) as caught:
        initialize_megatron(argv=["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert caught.value.code == 0 and "--fp8-interval" not in text
    for shown in ("--num-layers N ", "{gpipe,1f1b,interleaved,", "(default: 0.1)", "--bf16 "):
        assert shown in text
    assert "zarr" not in text and "--max-position-embeddings N Rows of the position table; `seq_length`" in text


@pytest.mark.parametrize("ascend", [False, True])
def test_the_launchers_scheduler_ends_before_mindspore_is_imported(monkeypatch, ascend):
    """msrun's scheduler process (MS_ROLE=MS_SCHED) ends with 0 in `initialize_megatron` on a CPU, and goes on for an
    Ascend job, whose ranks need it."""
    monkeypatch.setenv("MS_ROLE", "MS_SCHED")
    monkeypatch.setattr("parallel_core.system.environment.has_ascend", lambda: ascend)
    with nullcontext() if ascend else pytest.raises(SystemExit, match=r"^0$"):
        assert initialize_megatron(argv=line("")).hidden_size
    with pytest.raises(SystemExit, match=r"^0$"):
        initialize_megatron(argv=line("--device-target CPU"))


def test_the_launchers_scheduler_looks_at_no_files(monkeypatch):
    """The scheduler process does not check files: it runs the same script, and may begin when the ranks have saved
    their first checkpoint."""
    change = "--load not/there --exit-on-missing-checkpoint"
    assert read(line(change), check_files=True).errors
    monkeypatch.setenv("MS_ROLE", "MS_SCHED")
    assert not read(line(change), check_files=True).errors
