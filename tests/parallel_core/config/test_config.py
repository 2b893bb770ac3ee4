"""The config classes without a command line: derived fields, links between sections, checks that name the flag."""

from __future__ import annotations

import json
import pickle
from dataclasses import MISSING, fields
from operator import attrgetter

import pytest

from parallel_core.blocks.adapter_rules import adapter_findings
from parallel_core.config import (
    AllConfig,
    ConfigError,
    DatasetConfig,
    Finding,
    ModelConfig,
    ModelParallelConfig,
    OptimizerConfig,
    ParallelConfig,
    TrainingConfig,
    TransformerConfig,
)
from parallel_core.config.all import required_to_train
from parallel_core.config.base import _broken_rule, complain, types_of
from parallel_core.config.precision import PrecisionConfig
from parallel_core.config.recompute import RecomputeConfig
from parallel_core.config.rules.cross_layer_attention import shared_keys_fit
from parallel_core.config.tree import PUBLIC, SECTIONS
from parallel_core.config.update_rules.adam import AdamConfig
from tests.support.engine import TINY, config_of

SAMPLED = TINY.replace("--train-iters 2", "")
"""The flags of `TINY` without the length of the run."""


def model(**changes) -> ModelConfig:
    """A `ModelConfig` of 4 layers with some of its fields changed."""
    return ModelConfig(
        **{"vocab_size": 512, "num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 64, **changes}
    )


def test_the_names_of_the_earlier_system_are_the_same_classes():
    """`TransformerConfig` and `ModelParallelConfig`, names of MindSpeed-Core-MS, are `ModelConfig` and
    `ParallelConfig`."""
    assert TransformerConfig is ModelConfig and ModelParallelConfig is ParallelConfig


@pytest.mark.parametrize(
    "changes, field, value",
    [
        ({}, "ffn_hidden_size", 256),
        ({"hidden_act": "swiglu"}, "ffn_hidden_size", 128),
        ({"hidden_act": "swiglu", "hidden_size": 512}, "ffn_hidden_size", 1344),
        ({"ffn_hidden_size": 96}, "ffn_hidden_size", 96),
        ({}, "kv_channels", 16),
        ({}, "num_query_groups", 4),
        ({}, "max_position_embeddings", 64),
        ({"add_bias_linear": False}, "qkv_has_bias", False),
        ({"add_bias_linear": False, "qkv_has_bias": True}, "qkv_has_bias", True),
        ({"add_bias_linear": False}, "bias_gelu_fusion", False),
        ({"init_method_std": 0.1}, "embedding_init_method_std", 0.1),
        ({"params_dtype": "bfloat16"}, "compute_dtype", "bfloat16"),
        ({"apply_query_key_layer_scaling": True}, "attention_softmax_in_fp32", True),
    ],
)
def test_what_follows_from_other_fields(changes, field, value):
    """A field of the model section that is not given is derived from others of that section, such as ffn_hidden_size
    from hidden_size and activation."""
    assert getattr(model(**changes), field) == value


def test_gated_activations_double_the_first_linear():
    """`gated_linear_unit` is true for swiglu and false for gelu."""
    assert model(hidden_act="swiglu").gated_linear_unit and not model(hidden_act="gelu").gated_linear_unit


def test_what_follows_from_other_sections():
    """Data-parallel size, micro-batches of a step, iterations of the decay and the experts' feed-forward size are
    derived across sections."""
    config = AllConfig(
        model_config=model(),
        parallel_config=ParallelConfig(world_size=8, tensor_model_parallel_size=2),
        dataset_config=DatasetConfig(batch_size=2, global_batch_size=16),
        training_config=TrainingConfig(training_iters=9),
    )
    assert config.parallel_config.data_parallel_size == 4
    assert config.dataset_config.micro_batch_num == 2
    assert config.optimizer_config.lr_decay_iters == 9
    assert config.moe_config.moe_ffn_hidden_size == config.model_config.ffn_hidden_size


def test_samples_become_iterations_and_the_schedule_counts_samples():
    """--train-samples gives the number of whole iterations, and the learning-rate decay is then in samples."""
    config = AllConfig(
        model_config=model(),
        dataset_config=DatasetConfig(batch_size=4),
        training_config=TrainingConfig(train_samples=43),
    )
    assert config.training_config.training_iters == 10
    assert (config.optimizer_config.lr_decay_samples, config.optimizer_config.lr_decay_iters) == (43, None)


def test_sequence_parallelism_needs_tensor_parallelism_and_is_off_without():
    """sequence_parallel becomes false at tensor-parallel size 1 and stays true at 2."""
    assert not ParallelConfig(sequence_parallel=True).sequence_parallel
    assert ParallelConfig(world_size=2, tensor_model_parallel_size=2, sequence_parallel=True).sequence_parallel


def test_bf16_adds_gradients_up_in_float32():
    """Gradients accumulate and are reduced in float32 with bf16 unless --grad-reduce-in-bf16."""
    assert TrainingConfig(bf16=True).accumulate_allreduce_grads_in_fp32
    assert not TrainingConfig(bf16=True, grad_reduce_in_bf16=True).accumulate_allreduce_grads_in_fp32


def test_the_model_section_knows_its_siblings():
    """The model section has the other sections of its `AllConfig` as attributes, the same objects."""
    config = AllConfig(model_config=model())
    for name in ("parallel_config", "dataset_config", "training_config", "moe_config", "lora_config"):
        assert getattr(config.model_config, name) is getattr(config, name)


def test_interleaving_is_asked_for_by_layers_or_by_chunks():
    """Layers of a virtual stage and the number of virtual stages are two ways to say the same; the number of
    micro-batches is then one whole group."""

    def chunks(**changes):
        parallel = ParallelConfig(world_size=2, pipeline_model_parallel_size=2, **changes)
        config = AllConfig(model_config=model(num_layers=8), parallel_config=parallel)
        return config.parallel_config.virtual_pipeline_model_parallel_size, config.dataset_config.micro_batch_num

    assert chunks(num_layers_per_virtual_pipeline_stage=2) == chunks(virtual_pipeline_model_parallel_size=2) == (2, 2)
    assert chunks() == (None, 1)


WHOLE = {"recompute_method": "uniform", "recompute_num_layers": 1}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"recompute": [1]}, "--recompute [1]"),
        ({"recompute": True}, "--recompute"),
        ({"recompute_granularity": "full", **WHOLE}, "--recompute-granularity full"),
        ({"swap_attention": True}, "--swap-attention"),
        ({}, ""),
    ],
)
def test_a_flag_that_keeps_pairs_apart_is_named_as_it_was_given(given, named):
    """`against_pairs` is the flag that the user wrote, not another one for the same layers."""
    assert AllConfig(model_config=model(), recompute_config=RecomputeConfig(**given)).against_pairs == named


@pytest.mark.parametrize(
    "build, blamed",
    [
        (lambda: model(num_layers=0), "--num-layers 0"),
        (lambda: model(hidden_size="64"), "--hidden-size '64'"),
        (lambda: model(num_layers=True), "--num-layers True"),
        (lambda: model(norm_epsilon=float("nan")), "--norm-epsilon nan"),
        (lambda: model(normalization="none"), "--normalization none"),
        (lambda: OptimizerConfig(betas=0.9), "--adam-beta1"),
        (lambda: TrainingConfig(bf16=True, fp16=True), "--fp16"),
        (lambda: TrainingConfig(loss_scale=-1), "--loss-scale -1"),
        (lambda: TrainingConfig(loss_scale_factor=1), "--loss-scale-factor 1"),
        (lambda: TrainingConfig(profile=True, profile_step_start=5, profile_step_end=4), "--profile-step-end 4"),
        (lambda: ParallelConfig(world_size=3, tensor_model_parallel_size=2), "--tensor-model-parallel-size 2"),
        (lambda: AllConfig(model_config=model(num_attention_heads=3)), "--hidden-size 64"),
    ],
)
def test_a_check_names_the_flag(build, blamed):
    """A wrong value in a section raises an error with its flag and value, as soon as the object is made."""
    with pytest.raises(ValueError, match=blamed):
        build()


def test_all_findings_are_in_the_error():
    """A section with two wrong fields raises one `ConfigError` with both."""
    with pytest.raises(ConfigError) as caught:
        model(num_layers=0, hidden_size=-1)
    assert len(caught.value.errors) == 2


def test_fields_are_given_by_keyword_and_unknown_ones_refused():
    """A section's constructor takes its fields by keyword only, and no other names."""
    with pytest.raises(TypeError):
        ParallelConfig(2)
    with pytest.raises(TypeError):
        ParallelConfig(tensor_parallel=2)


def test_a_dictionary_of_the_config_is_plain_and_without_links():
    """`to_dict` is plain JSON with nested sections and without the links from one section to another."""
    config = AllConfig(model_config=model()).to_dict()
    assert json.loads(json.dumps(config))["model_config"]["fa_config"]["input_layout"] == "SBH"
    assert "parallel_config" not in config["model_config"]


def test_an_error_goes_from_process_to_process():
    """A `ConfigError` keeps its findings when it is pickled, which calls an exception's class with its arguments."""
    error = pickle.loads(pickle.dumps(ConfigError([Finding("--lr", 1, "a"), Finding("--seed", None, "b", "c")])))
    assert isinstance(error, ConfigError) and error.errors == ["--lr 1: a", "--seed: b; c"] == str(error).split("\n")


def test_options_of_a_concern_are_the_sections_own():
    """Options that lie in a part of a section (`training.precision.bf16`) are also read, written and given as the
    section's own (`training.bf16`), as the documents name them."""
    training = TrainingConfig(bf16=True, save_interval=7)
    assert (training.bf16, training.precision.bf16, training.checkpoint.save_interval) == (True, True, 7)
    training.save_interval = 9
    assert training.checkpoint.save_interval == 9
    assert training.accumulate_allreduce_grads_in_fp32, "what follows from bf16 crosses concerns"
    config = AllConfig(model_config=model())
    config.model_config.recompute_granularity = "full"
    assert config.recompute_config.recompute_granularity == "full"
    with pytest.raises(TypeError):
        TrainingConfig(no_such_option=1)


def test_an_option_beside_its_own_concern_is_refused():
    """An option given beside the inner config that has it is an error; neither is dropped."""
    with pytest.raises(TypeError, match="bf16 is an option of precision, which is given"):
        TrainingConfig(precision=PrecisionConfig(), bf16=True)


def test_public_paths_lead_to_the_same_values():
    """Each path that the documents give an option (`PUBLIC`) leads to the value at its real path."""
    config = AllConfig(model_config=model())
    for path, public in PUBLIC.items():
        assert attrgetter(public)(config) == attrgetter(path)(config), public


def test_defaults_keep_their_options_own_rules():
    """Every default satisfies its own option's rule; values left at their default are not checked when a config is
    made."""
    for cls in set(SECTIONS.values()):
        for entry in fields(cls):
            if "flag" in entry.metadata and entry.default not in (MISSING, None):
                assert _broken_rule(entry.metadata, types_of(cls)[entry.name], entry.default) is None, entry.name


def test_entries_of_a_tuple_have_its_type():
    """Decay rates of Adam that are texts are a finding, not a TypeError of the rule about their range."""
    with pytest.raises(ConfigError, match=r"--adam-beta1 .*must be of type tuple"):
        AdamConfig(betas=("a", "b"))


def test_samples_below_the_first_step_are_named():
    """--train-samples below the first global batch size is a finding about it, not that it must be given."""
    with pytest.raises(ConfigError, match=r"--train-samples 3: must be at least the samples of the first step, 4"):
        complain(required_to_train(config_of(f"{SAMPLED} --train-samples 3 --global-batch-size 4", 1)))


def test_a_size_between_equal_ones_is_judged():
    """The 3 of --step-batch-size-schedule 4, 3, 4, which interleaving does not take, is a finding."""
    flags = (
        f"{SAMPLED} --train-samples 100 --micro-batch-size 1 --global-batch-size 4 --num-layers 4 "
        "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 1"
    )
    steps = "0:4 640:3 1280:4"
    with pytest.raises(ConfigError, match=r"--step-batch-size-schedule \(size 3, micro-batches: 3\)"):
        config_of([*flags.split(), "--step-batch-size-schedule", steps], 2)


def test_layers_that_do_nothing_may_be_an_empty_list():
    """noop_layers=[] goes with shared keys as no list does; a cell of an adapter whose linear --lora-target-modules
    does not name is a finding."""
    config = config_of(f"{TINY} --cla-share-factor 2", 1)
    config.parallel_config.noop_layers = []
    assert list(shared_keys_fit(config)) == []
    config = config_of(f"{TINY} --lora-r 4 --lora-target-modules linear_qkv", 1)
    config.lora_config.cells = [{"cell": "linear_qkv"}, {"cell": "linear_fc1"}]
    assert [str(found) for found in adapter_findings(config)] == [
        "--lora-target-cells linear_fc1: names linears that get no adapter, since --lora-target-modules does not name "
        "them; name them there, too"
    ]
