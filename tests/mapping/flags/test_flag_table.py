"""The table of flags: consistent in itself, with the config classes, and with recorded facts of the public parsers."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

from mapping.derive.fields import DERIVED
from mapping.flags import BY_NAME, IGNORED, MAPPED, REFUSED, ROWS
from mapping.flags.with_option import WITHOUT_FLAG
from parallel_core.config.tree import OPTIONS
from parallel_core.no_effect.row import ALWAYS
from tests.support.assets import recorded

NO_FIELD = {"--yaml-cfg", "--deepspeed-config", "--deepspeed", "--fsdp2-config-path"}


def test_no_name_stands_for_two_rows():
    """A flag's name or alias occurs in one row of the table only."""
    assert not [
        name for name, count in Counter(name for row in ROWS for name in (row.name, *row.aliases)).items() if count > 1
    ]


def test_a_mapped_flag_has_a_field_and_the_others_a_reason():
    """A mapped flag fills an existing option (but for flags that name files), an ignored or refused one has a
    reason."""
    for row in ROWS:
        if row.status == MAPPED and row.name not in NO_FIELD:
            assert row.target in OPTIONS, row
        if row.status == IGNORED and row.target:
            assert row.reason == ALWAYS[row.target], row
        elif row.status in (IGNORED, REFUSED):
            assert row.reason and not row.target, row


def test_every_field_that_names_a_flag_has_that_flag():
    """The flag in a field's error messages must exist and fill that field, unless it is derived or has no flag."""
    for path, option in OPTIONS.items():
        if option.flag not in WITHOUT_FLAG:
            row = BY_NAME[option.flag]
            assert row.target == path or path in DERIVED or row.dest == "add_bias_linear", (option.flag, path)


def test_a_default_differs_from_the_options_only_where_the_field_is_derived():
    """A flag that fills a field unchanged has the field's default, or no default."""
    by_target = defaultdict(list)
    for row in ROWS:
        if row.status == MAPPED and row.target and row.target not in DERIVED:
            by_target[row.target].append(row)
    for target, rows in by_target.items():
        default = OPTIONS[target].default
        if rows[0].default is not None:
            assert rows[0].default == default, (rows[0].name, rows[0].default, default)


def test_mapped_rows_of_one_attribute_agree_on_its_default():
    """Mapped flags that store the same argument (`dest`) have the same default."""
    defaults = defaultdict(set)
    for row in ROWS:
        if row.status == MAPPED:
            defaults[row.dest].add(repr(row.default))
    assert not {dest: values for dest, values in defaults.items() if len(values) > 1}


def test_refused_values_are_among_the_choices():
    """A value that a flag refuses is one of its choices."""
    for row in ROWS:
        assert set(row.refuses) <= set(row.choices), row.name


@pytest.fixture(scope="module")
def facts():
    """Flag -> the facts recorded of it in each public parser."""
    by_flag = defaultdict(list)
    for fact in recorded("megatron_flags/flags.json.xz")["flags"]:
        by_flag[fact["flag"]].append(fact)
    return by_flag


def test_every_recorded_flag_is_in_the_table(facts):
    """Each flag and alias of the public parsers has a row."""
    names = {name for rows in facts.values() for row in rows for name in (row["flag"], *row["aliases"])}
    assert not names - BY_NAME.keys()


def test_arity_agrees_with_the_recorded_facts(facts):
    """A flag takes no value, one or several, as in the public parsers."""
    for flag, rows in facts.items():
        row = BY_NAME[flag]
        takes_none = {fact["action"] != "store" for fact in rows}
        assert takes_none == {row.type is None}, flag
        if row.type is not None and flag != "--spec":
            assert (row.nargs is not None) in {fact["nargs"] is not None for fact in rows}, flag


OTHER_DEFAULTS = {
    "--num-query-groups": "with --group-query-attention only",
    "--context-parallel-algo": "Megatron's ring",
    "--pre-tockens": "MindSpeed-LLM's",
    "--loss-scale-window": "1000, but for an adaptive loss scaler, which begins with its shortest",
    "--lora-r": "",
    "--profile-step-start": "MindFormers' 1",
    "--profile-step-end": "and 5",
    "--dist-ckpt-strictness": "names on one side alone are refused unless a script says otherwise",
    "--spec": "",
    "--yarn-correction-range-round-to-int": "its yarn's own, where none is said",
    "--tokenizer-type": "",
    "--tokenizer-hf-include-special-tokens": "0.16.1's: BOS and EOS only on demand",
}


def test_defaults_of_mapped_flags_are_megatrons(facts):
    """A mapped flag of Megatron's has its default, but for those in `OTHER_DEFAULTS`."""
    for flag, rows in facts.items():
        row = BY_NAME[flag]
        megatron = [fact for fact in rows if fact["source"] == "megatron"]
        if row.status == MAPPED and megatron and flag not in OTHER_DEFAULTS and row.name == flag:
            wanted = megatron[0]["default"]
            assert row.default == wanted or (not row.default and not wanted), (flag, row.default, wanted)


def test_recorded_choices_are_known_values(facts):
    """Each choice of a public parser is among the row's choices."""
    for flag, rows in facts.items():
        row = BY_NAME[flag]
        choices = {choice for fact in rows for choice in fact["choices"] or () if choice is not None}
        if row.choices and choices:
            assert choices <= set(row.choices), (flag, choices - set(row.choices))
