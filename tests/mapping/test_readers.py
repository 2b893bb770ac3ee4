"""No mapped flag is without effect: it changes a config field, and code that computes reads that field."""

import pytest

from mapping.flags import MAPPED, ROWS
from parallel_core.no_effect.row import ALWAYS
from tests.support.mapping.readers import ANY, is_read, reads
from tests.support.mapping.variations import COMPANY, effect

pytestmark = pytest.mark.slow

NAMES = {name: row for row in ROWS if row.status == MAPPED and row.target for name in (row.name, *row.aliases)}
TARGETS = {row.target: name for name, row in NAMES.items()}
READ = reads()

DERIVED_FROM = {
    "model_config.group_query_attention": "model_config.num_query_groups",
    "model_config.make_vocab_size_divisible_by": "model_config.vocab_size",
    "moe_config.overlap_moe_expert_parallel_comm": "parallel_config.pipeline_schedule",
}
"""Field that is used only to derive others -> one of these, which is read."""

OF_A_CHECKPOINT = {
    "training_config.checkpoint.use_checkpoint_args": "model_config.num_layers",
    "training_config.checkpoint.use_mp_args_from_checkpoint_args": "parallel_config.tensor_model_parallel_size",
    "training_config.checkpoint.use_tokenizer_model_from_checkpoint_args": "dataset_config.tokenizer_model",
}
"""Field that asks for values from a checkpoint (`test_checkpoint_args.py`) -> one of the fields that it fills."""


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_mapped_flag_changes_its_field(name):
    """Each mapped flag, by each name, has an accepted command line on which its field, and what is derived from it,
    differs from the one without the flag."""
    target = NAMES[name].target
    targets = [target, DERIVED_FROM[target]] if target in DERIVED_FROM else [target]
    assert effect(NAMES[name], name, *targets), f"{name} changes nothing in {' and '.join(targets)}"


@pytest.mark.parametrize("target", sorted(TARGETS))
def test_a_mapped_field_is_read(target):
    """Each mapped field is read by the engine or the plan; reading within the config classes does not count."""
    field = (DERIVED_FROM | OF_A_CHECKPOINT).get(target, target)
    others = [section for section, names in READ.items() if section != ANY and field.rpartition(".")[2] in names]
    assert is_read(field, READ), (
        f"{TARGETS[target]} does nothing: nobody reads {field} (read by this name in: {', '.join(others) or 'nothing'})"
    )


@pytest.mark.parametrize("target", ALWAYS)
def test_a_field_without_effect_is_read_by_nobody(target):
    """A field whose flag is ignored as without effect is read nowhere, else the reason is no longer true."""
    assert not is_read(target, READ)


def test_readers_are_told_apart_by_section():
    """`is_read` distinguishes fields of one name in different sections, and other attributes of that name."""
    assert is_read("training_config.seed", READ) and not is_read("dataset_config.seed", READ)
    assert not is_read("training_config.shape", READ) and not is_read("model_config.append", READ)


def test_a_field_that_is_only_derived_from_needs_to_be_listed():
    """No field in `DERIVED_FROM` is read itself."""
    assert not [target for target in DERIVED_FROM if is_read(target, READ)]


def test_company_is_given_to_flags_that_need_it():
    """Each flag in `COMPANY` is mapped, and has an effect in that company."""
    assert not [name for name in COMPANY if name not in NAMES or effect(NAMES[name], name, NAMES[name].target) is None]
