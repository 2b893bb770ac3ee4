"""MindSpeed's file for FSDP2 (--fsdp2-config-path): each key acts, is ignored with a reason, or refused."""

from __future__ import annotations

import pytest

from mapping.explain import outcomes
from mapping.flags import IGNORED
from mapping.merge import Reading
from mapping.readers.fsdp2 import KEYS
from mapping.reading import read
from parallel_core.config.tree import path_of
from tests.support.mapping.lines import line
from tests.support.mapping.variations import value_of

CLASSES = "megatron.core.transformer"


@pytest.fixture
def reading_with(tmp_path):
    """A function from the file's text and a change of the good command line to the reading."""

    def read_with(content: str, change: str = "--bf16 --use-torch-fsdp2") -> Reading:
        path = tmp_path / "fsdp2.yaml"
        path.write_text(content)
        return read([*line(change), "--fsdp2-config-path", str(path)], world_size=2)

    return read_with


@pytest.mark.parametrize(
    ("content", "field", "value"),
    [
        ("sharding_size: 2", "zero_stage", 3),
        ("reshard_after_forward: true", "parallel_optimizer_comm_recompute", True),
        ("reshard_after_forward: false", "parallel_optimizer_comm_recompute", False),
        ("reshard_after_forward: 2", "parallel_optimizer_comm_recompute", True),
        ("reduce_dtype: bf16", "communication_data_type", "bf16"),
        ("reduce_dtype: null", "communication_data_type", None),
        ("offload_to_cpu: true", "cpu_offload_optimizer", True),
        ("offload_to_cpu: true", "cpu_offload_params", True),
        (f"recompute_modules: [{CLASSES}.transformer_layer.TransformerLayer]", "recompute_granularity", "full"),
        (f"recompute_modules: [{CLASSES}.transformer_layer.TransformerLayer]", "recompute_num_layers", 1),
        (f"recompute_modules: [{CLASSES}.mlp.MLP]", "recompute_granularity", "selective"),
        (f"recompute_modules: [{CLASSES}.mlp.MLP]", "recompute_modules", ["mlp"]),
        ("recompute_modules: []", "recompute_granularity", None),
    ],
)
def test_a_key_becomes_its_field(reading_with, content, field, value):
    """Each key of MindSpeed's FSDP2 file fills the config field."""
    found = reading_with(content)
    assert found.errors == [] and value_of(found.config, path_of(field)) == value


PUBLISHED = """
reshard_after_forward: True
param_dtype: "bf16"
reduce_dtype: "fp32"
output_dtype: "bf16"
cast_forward_inputs: True
num_to_forward_prefetch: 2
"""


def test_every_key_of_a_published_file_is_answered(reading_with):
    """Each key of a published file fills an option, is compared with one, or is ignored with a reason."""
    found = reading_with(PUBLISHED)
    said = {outcome.flag: outcome for outcome in outcomes(found) if outcome.flag in KEYS}
    assert found.errors == [] and len(said) == 6
    assert all(outcome.target or outcome.reason for outcome in said.values())
    assert {flag for flag, outcome in said.items() if outcome.status == IGNORED} == {
        "cast_forward_inputs",
        "num_to_forward_prefetch",
    }


@pytest.mark.parametrize(
    ("content", "blamed"),
    [
        ("sharding_sizes: 2", "sharding_size?"),
        ("sharding_size: 0", "number of ranks"),
        ("sharding_size: auto", "number of ranks"),
        ("reshard_after_forward: often", "true, false or a number"),
        ("param_dtype: fp32", "the model computes in bfloat16"),
        ("param_dtype: int8", "must be one of bf16, fp16, fp32"),
        ("param_dtype: [bf16]", "must be one of bf16, fp16, fp32"),
        ("output_dtype: fp16", "the model computes in bfloat16"),
        ("reduce_dtype: fp64", "must be one of bf16, fp16, fp32"),
        ("cast_forward_inputs: often", "must be one of True, False"),
        ("ignored_modules: [a.B]", "leaving modules out"),
        ("recompute_modules: [a.B]", "recomputes classes of Megatron-Core alone"),
        ("recompute_modules: a.B", "must be a list"),
        ("[1]", "must hold keys"),
        ("a: [", "cannot be read"),
        ("a: !!timestamp abc", "cannot be read"),
        ("a: !!bool abc", "cannot be read"),
        ('a: !!int ""', "cannot be read"),
        ('a: "\\UFFFFFFFF"', "cannot be read"),
        ("a: " + 3000 * "[", "cannot be read"),
    ],
)
def test_what_cannot_be_done_is_named(reading_with, content, blamed):
    """An unknown key or a wrong value is one error with the rule."""
    (error,) = reading_with(content).errors
    assert blamed in error


def test_flags_that_say_otherwise_are_named(reading_with):
    """Recomputation in the file that contradicts flags is an error, and so is the file without --use-torch-fsdp2."""
    content = f"recompute_modules: [{CLASSES}.transformer_layer.TransformerLayer]"
    errors = reading_with(content, "--use-torch-fsdp2 --recompute-granularity selective").errors
    assert any("contradicts --recompute-granularity selective" in error for error in errors)
    (error,) = reading_with("sharding_size: 2", "--bf16").errors
    assert error.startswith("--fsdp2-config-path") and "--use-torch-fsdp2" in error


def test_a_file_that_is_missing_stops_a_run_but_no_explanation(tmp_path):
    """A missing file is ignored with a reason where files are not looked at (`explain`), and an error at a start."""
    given = [*line("--use-torch-fsdp2"), "--fsdp2-config-path", str(tmp_path / "none.yaml")]
    found = read(given, world_size=2)
    assert found.errors == []
    (said,) = (outcome for outcome in outcomes(found) if outcome.flag == "--fsdp2-config-path")
    assert said.status == IGNORED and "no such file" in said.reason
    (error,) = read(given, world_size=2, check_files=True).errors
    assert error.startswith("--fsdp2-config-path") and "no such file" in error
