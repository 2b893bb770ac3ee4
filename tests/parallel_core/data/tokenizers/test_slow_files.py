"""HuggingFace folders without tokenizer.json (vocab and merges, SentencePiece): ids, texts and special ids as
transformers 4.57.1 reads them."""

import json
from argparse import Namespace

import pytest

from parallel_core.data.tokenizers import TokenizerOptions, build_tokenizer, facts, has_tokenizer
from parallel_core.data.tokenizers import library as libraries
from tests.support.tokenizer_records import make_slow_folder, options_of, records, slow_folders, unpack


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return unpack(tmp_path_factory.mktemp("tokenizers"))


def options(folder, **more) -> TokenizerOptions:
    return TokenizerOptions("HuggingFaceTokenizer", str(folder), legacy_tokenizer=True, **more)


@pytest.mark.parametrize("name", sorted(slow_folders()))
def test_a_folder_without_tokenizer_json(name, folders, tmp_path, monkeypatch):
    """Ids of 70 texts with and without special tokens around them, their decoding, sizes and special ids equal the
    record; sizes and special ids need no tokenizer library."""
    record, folder = slow_folders()[name], make_slow_folder(name, folders, tmp_path / name)
    tokenizer = build_tokenizer(options(folder))
    for text, wanted in record["encode"].items():
        given = records()["texts"][text]
        assert (tokenizer.tokenize(given), tokenizer.encode(given)) == (wanted["ids"], wanted["plain"]), text
        assert tokenizer.detokenize(wanted["ids"]) == wanted["text"], text
    monkeypatch.setattr(libraries, "find_spec", lambda package: None)
    found = facts(options(folder))
    assert tokenizer.facts == found and found.vocab_size == record["size"]
    assert {role: getattr(found, role) for role in record["roles"]} == record["roles"]
    assert list(found.additional_special_tokens_ids) == record["additional"]


@pytest.mark.parametrize("name", ["hf_llama", "hf_qwen2", "hf_t5"])
def test_the_same_tokenizer_as_with_tokenizer_json(name, folders, tmp_path):
    """The folder without tokenizer.json gives the facts, vocabulary and chat ids of the one with it."""
    with_json = build_tokenizer(options(folders / name))
    folder = make_slow_folder(name.removeprefix("hf_"), folders, tmp_path / name)
    config = json.loads((folders / name / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    without = build_tokenizer(options(folder))
    assert without.facts == with_json.facts and without.vocab == with_json.vocab
    if "chat_template" in config:
        messages = [{"role": "user", "content": " a  question"}]
        assert without.apply_chat_template(messages) == with_json.apply_chat_template(messages)


def test_a_class_that_is_null_is_that_of_the_model(folders, tmp_path):
    """A tokenizer_config.json whose tokenizer_class is null is read as the class of config.json's model_type."""
    folder = make_slow_folder("qwen2", folders, tmp_path / "qwen2")
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    path = folder / "tokenizer_config.json"
    named = facts(options(folder))
    path.write_text(json.dumps({**json.loads(path.read_text()), "tokenizer_class": None}))
    assert facts(options(folder)) == named


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            {"tokenizer_class": "XLNetTokenizer"},
            r"no files of a tokenizer_class that .* \(GPT2Tokenizer",
        ),
        ({"auto_map": {"AutoTokenizer": ["mine.Mine", None]}}, "let code of the folder's own run with --trust-remote"),
        ({"extra_ids": "x"}, r"t5/tokenizer_config\.json: extra_ids must be a number"),
    ],
)
def test_a_folder_that_is_read_otherwise_is_named(changed, words, folders, tmp_path):
    """A tokenizer_config.json with an unknown class, with code of its own, or with a setting of the wrong kind is an
    error in words."""
    folder = make_slow_folder("t5", folders, tmp_path / "t5")
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))
    for use in (facts, build_tokenizer):
        with pytest.raises(ValueError, match=words):
            use(options(folder))


def test_special_tokens_that_are_no_list_are_named(folders, tmp_path):
    """additional_special_tokens that are a number, beside an added_tokens.json, are an error in words."""
    folder = make_slow_folder("llama_older", folders, tmp_path / "llama")
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "additional_special_tokens": 5}))
    (folder / "special_tokens_map.json").unlink()
    with pytest.raises(ValueError, match=r"tokenizer_config\.json: additional_special_tokens must be a list"):
        facts(options(folder))


@pytest.mark.slow
def test_generation_takes_such_a_folders_tokenizer(folders, tmp_path):
    """`generate --load` of such a folder uses its tokenizer, and without its merges.txt finds none."""
    from pynative.generation.options import tokenizer_of

    folder = make_slow_folder("qwen2", folders, tmp_path / "qwen2")
    given = {"load": folder, "patch_tokenizer_type": None}
    assert tokenizer_of(Namespace(**given))["tokenizer_type"] == "HuggingFaceTokenizer"
    (folder / "merges.txt").unlink()
    assert not has_tokenizer(folder) and "tokenizer_type" not in tokenizer_of(Namespace(**given))


def test_trust_in_code_is_not_asked_for_files_that_are_read(folders, tmp_path):
    """--trust-remote-code beside a folder without code of its own needs no transformers package."""
    folder = make_slow_folder("llama", folders, tmp_path / "llama")
    plain = options_of("hf_llama.legacy", folders)
    assert facts(options(folder, trust_remote_code=True)) == facts(plain)
