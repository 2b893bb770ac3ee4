"""The choice of a tokenizer by --tokenizer-type, and NullTokenizer, for data that are ids already."""

from types import SimpleNamespace

import pytest

from parallel_core.data.tokenizers import TokenizerOptions, build_tokenizer, facts, own_code
from parallel_core.data.tokenizers import library as libraries
from parallel_core.data.tokenizers.huggingface import render
from parallel_core.findings import ConfigError


def null(vocab_size: int, **more: int):
    return build_tokenizer(TokenizerOptions("NullTokenizer", vocab_size=vocab_size, **more))


def test_null_tokenizer_adds_one_id_for_the_end_of_document():
    """--vocab-size 100 gives a vocabulary of 101 with end-of-document id 100, no padding; texts are decimal ids."""
    tokenizer = null(100)
    assert (tokenizer.vocab_size, tokenizer.eod, tokenizer.pad) == (101, 100, None)
    assert tokenizer.tokenize(" 3 99\n0 ") == [3, 99, 0]
    assert tokenizer.detokenize([3, 99, 0]) == "3 99 0"
    assert tokenizer.vocab["7"] == 7 and tokenizer.inv_vocab[100] == "100"


@pytest.mark.parametrize(
    ("text", "message"), [("a b", "takes decimal ids"), ("101", "id 101 is not below 101"), ("-1", "id -1 is not")]
)
def test_null_tokenizer_refuses_what_is_no_id(text, message):
    """NullTokenizer refuses a text that is no decimal ids of its vocabulary."""
    with pytest.raises(ValueError, match=message):
        null(100).tokenize(text)


@pytest.mark.parametrize("more", [{"null_tokenizer_eod_id": 100}, {"null_tokenizer_pad_id": -2}])
def test_null_tokenizer_refuses_ids_out_of_range(more):
    """--null-tokenizer-eod-id and --null-tokenizer-pad-id must be ids of the vocabulary."""
    with pytest.raises(ValueError, match=r"--null-tokenizer-(eod|pad)-id -?\d+: must be .*--vocab-size 100"):
        null(100, **more)


def test_unknown_type_names_those_there_are():
    """An unknown --tokenizer-type is an error that lists the available ones."""
    with pytest.raises(ValueError, match=r"--tokenizer-type Bert: is not available; choose one of .*NullTokenizer"):
        build_tokenizer(TokenizerOptions("Bert"))


@pytest.mark.parametrize(
    ("kind", "given", "missing"),
    [
        ("GPT2BPETokenizer", {}, "needs --vocab-file and --merge-file"),
        ("GPT2BPETokenizer", {"vocab_file": "v"}, "needs --merge-file"),
        ("HuggingFaceTokenizer", {}, "needs --tokenizer-model"),
        ("NullTokenizer", {}, "needs --vocab-size"),
    ],
)
def test_missing_option_is_named(kind, given, missing):
    """A tokenizer type without a flag that it needs is an error with type and flag."""
    for use in (build_tokenizer, facts):
        with pytest.raises(ConfigError, match=f"--tokenizer-type {kind}: {missing}"):
            use(TokenizerOptions(kind, **given))


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch):
    """Encoding without the tokenizer's package is an error with the pip command; size and special ids need none."""
    monkeypatch.setattr(libraries, "find_spec", lambda name: None)
    options = TokenizerOptions("GPT2BPETokenizer", vocab_file="v", merge_file="m")
    with pytest.raises(ConfigError, match=r"package tokenizers, not installed; pip install -e '\.\[tokenizers\]'"):
        build_tokenizer(options)
    with pytest.raises(ValueError, match="--vocab-file v: expected a JSON object"):
        facts(options)


@pytest.mark.parametrize("name", ["tools", "documents"])
def test_a_chat_template_reads_tools_and_documents(name):
    """`render` gives a chat template the tools and documents that it is given, None where it is given none."""
    template = "{% if NAME %}{{ NAME | length }}{% else %}none{% endif %}".replace("NAME", name)
    assert render(template, {name: ["a", "b"]}) == "2" and render(template, {}) == "none"


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages[0] | dictsort }}",
        "{{ '{0}'.format() }}",
        "{{ 'a'.encode('no such encoding') }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_any_error_of_a_chat_template_is_an_error_in_words(template):
    """`render` raises ValueError for whatever a template's expressions raise."""
    with pytest.raises(ValueError, match="the chat template does not take this conversation"):
        render(template, {"messages": [5]})


def test_code_of_a_folder_that_fails_to_encode_is_named(tmp_path, monkeypatch):
    """Errors of a folder's own code while it encodes, decodes or lists its tokens are ValueErrors with the folder."""

    class Broken:
        def __len__(self):
            return 3

        def __getattr__(self, name):
            if name.endswith("_token_id"):
                raise AttributeError(name)
            raise RuntimeError(name)

    package = SimpleNamespace(AutoTokenizer=SimpleNamespace(from_pretrained=lambda *_, **__: Broken()))
    monkeypatch.setattr(own_code, "library", lambda *_: package)
    made = own_code.OwnCodeTokenizer(TokenizerOptions("HuggingFaceTokenizer", str(tmp_path)))
    for use in (lambda: made.tokenize("a"), lambda: made.detokenize([1]), lambda: made.vocab):
        with pytest.raises(ValueError, match=f"--tokenizer-model {tmp_path}: its own code fails"):
            use()
