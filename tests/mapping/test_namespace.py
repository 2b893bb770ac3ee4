"""The namespace of `parse_args` keeps its config: the same object again, and made anew only from changed attributes."""

from __future__ import annotations

import copy
import pickle
from argparse import Namespace

import pytest

from mapping import ConfigError, init_configs_from_args, parse_args
from tests.support.mapping.lines import line, reading


def test_the_config_is_the_one_that_was_built():
    """`init_configs_from_args` of unchanged arguments gives the same object each time, and changes no argument."""
    args = parse_args(line("--swiglu --vocab-size 500"))
    before = dict(vars(args))
    config = init_configs_from_args(args)
    assert config is init_configs_from_args(args) and config == reading("--swiglu --vocab-size 500").config
    assert vars(args) == before


def test_a_changed_attribute_is_read_and_what_follows_from_it():
    """A changed argument acts like its flag: derived values follow, in the config and in the arguments."""
    args = parse_args(line("--vocab-size 500"))
    args.hidden_size, args.vocab_size = 128, 1000
    config = init_configs_from_args(args)
    assert config == reading("--hidden-size 128 --vocab-size 1000").config
    assert (args.ffn_hidden_size, args.padded_vocab_size) == (512, 1024)
    assert config is init_configs_from_args(args)


def test_a_list_that_was_changed_in_place_is_read():
    """A list argument that was changed in place counts."""
    args = parse_args(line("--data-path a"))
    args.data_path.append("b")
    assert init_configs_from_args(args).dataset_config.data_path == ["a", "b"]


def test_a_deleted_attribute_is_not_given():
    """A deleted argument counts as not given."""
    args = parse_args(line("--seed 5 --lora-target-modules linear_qkv"))
    del args.lora_target_modules
    assert init_configs_from_args(args).lora_config.lora_rank == 0


def test_a_changed_number_of_processes_is_read():
    """A changed args.world_size gives another data-parallel size."""
    args = parse_args(line("--tensor-model-parallel-size 2"), world_size=2)
    args.world_size = 4
    assert init_configs_from_args(args).parallel_config.data_parallel_size == 2


def test_a_mistake_in_a_change_names_the_attribute():
    """A wrong value set on the arguments is an error that begins with args.NAME; once repaired the config is made."""
    args = parse_args(line())
    args.lr = -1.0
    with pytest.raises(ConfigError) as caught:
        init_configs_from_args(args)
    assert caught.value.errors == ["args.lr -1: must be at least 0; change it"]
    args.lr = 0.5
    assert init_configs_from_args(args).optimizer_config.learning_rate == 0.5


def test_all_mistakes_in_changes_are_said_at_once():
    """Attributes that cannot be read, and one that can but is wrong, are one error with a line for each."""
    args = parse_args(line())
    args.lr, args.bf16, args.num_layers = "fast", "yes", 0
    with pytest.raises(ConfigError) as caught:
        init_configs_from_args(args)
    assert caught.value.errors == [
        "args.lr fast: must be a number; change it",
        "args.bf16 'yes': must be true or false; change it",
        "args.num_layers 0: must be at least 1; change it",
    ]
    args.lr, args.bf16, args.num_layers = 0.5, True, 4
    assert init_configs_from_args(args).optimizer_config.learning_rate == 0.5


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda args: pickle.loads(pickle.dumps(args))])
def test_copies_know_it_too(copied):
    """Copied, deep-copied and pickled arguments keep the config, and changes to them count."""
    args = copied(parse_args(line("--swiglu")))
    args.seed = 7
    assert init_configs_from_args(args) == reading("--swiglu --seed 7").config


def test_the_attributes_alone_say_the_same():
    """A plain namespace with the same attributes gives the same config: filled-in values are not derived a second
    time."""
    change = "--swiglu --scale-depth 1.4 --vocab-size 500 --first-k-dense-replace 1 --num-experts 2 --bf16"
    assert init_configs_from_args(Namespace(**vars(parse_args(line(change))))) == reading(change).config


@pytest.mark.parametrize("file, content", [("yaml-cfg", "model_config: {seq_length: 64}"), ("deepspeed-config", "{}")])
def test_attributes_alone_do_not_say_what_a_file_says(tmp_path, file, content):
    """A plain copy of arguments that name a configuration file is an error: the file's values would be lost."""
    path = tmp_path / "file"
    path.write_text(content)
    args = parse_args(line(f"--{file} {path}"))
    assert init_configs_from_args(args).model_config.seq_length == 64
    with pytest.raises(ConfigError, match=f"--{file} {path}: is read by parse_args"):
        init_configs_from_args(Namespace(**vars(args)))


def test_a_users_own_flag_of_another_spelling_is_read():
    """A user's own flag with an alias of ours (--bucket-size) fills the field, unless our flag is given."""

    def extra(parser):
        parser.add_argument("--bucket-size", type=int, default=None)
        return parser

    config = init_configs_from_args(parse_args(line("--bucket-size 100"), extra_args_provider=extra))
    assert config.training_config.bucket_size == 100
    assert init_configs_from_args(parse_args(line(), extra_args_provider=extra)).training_config.bucket_size is None
    given = parse_args(line("--bucket-size 100 --ddp-bucket-size 50"), extra_args_provider=extra)
    assert init_configs_from_args(given).training_config.bucket_size == 50
