"""Tokenizers against 104 records of Megatron 0.16.1, its main branch, MindSpeed-LLM and transformers: ids, texts,
special ids and padded sizes."""

import json
import shutil

import pytest

from parallel_core.data.tokenizers import (
    TokenizerOptions,
    build_tokenizer,
    facts,
    padded_vocab_size,
    training_vocab_size,
)
from parallel_core.data.tokenizers.as_transformers import without_blanks
from tests.support.tokenizer_records import options_of, records, unpack

pytestmark = pytest.mark.slow

CASES = records()["cases"]
RECORDED = sorted(case for case, record in CASES.items() if "encode" in record)
CHATS = sorted(case for case, record in CASES.items() if "chat" in record)
REFUSED = sorted(case for case, record in CASES.items() if record.get("build"))
ROLES = ("bos", "eos", "pad", "unk", "cls", "sep", "mask")

_HEAD = "Megatron's main puts BOS and EOS around text without being asked: here --legacy-tokenizer does"
_BUILT_ANEW = "transformers 5 builds it from vocabulary and merges and ignores the normalizer of its tokenizer.json"
_TOO_LARGE = "an id beyond the vocabulary is an error here"
OTHERWISE: dict[str, tuple[tuple[str, ...], str]] = {
    **{f"hf_{name}.head": (("ids", "text"), _HEAD) for name in ("bert", "llama", "llama3", "nemotron", "qwen2", "t5")},
    **{
        f"{name}.{system}": (("ids",), _BUILT_ANEW)
        for name in ("hf_llama", "hf_t5")
        for system in ("mindspeed", "transformers5_special", "transformers5_nospecial")
    },
    "hf_llama.core_slow": (("text",), "transformers' slow class loses a leading blank and leaves U+2581 in text"),
    **{f"null_1000.{system}": (("ids",), _TOO_LARGE) for system in ("core", "legacy", "head_ids")},
    "null_1000.head": (
        ("ids", "size", "roles"),
        f"{_TOO_LARGE}; main counts --vocab-size with the end of document, 0.16.1 without",
    ),
    "tiktoken_a.head": (("text",), "main decodes the joined bytes; 0.16.1 each token alone: --legacy-tokenizer joins"),
}
"""Record -> (kinds of facts in it that contradict Megatron 0.16.1 or the tokenizer.json, the reason); its other facts
hold."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return unpack(tmp_path_factory.mktemp("tokenizers"))


def answer(work, *arguments):
    """The result of a call, or None where the tokenizer refuses."""
    try:
        return work(*arguments)
    except ValueError:
        return None


def is_error(recorded) -> bool:
    """Whether the recorded program failed here."""
    return isinstance(recorded, dict) and "error" in recorded


def id_differences(case, tokenizer):
    """(text's name, recorded ids, ours) of each text whose ids differ; none where the recorded program fails."""
    record = CASES[case]
    for texts, recorded in (("texts", record["encode"]), ("surrogates", record["encode_surrogates"])):
        for name, wanted in recorded.items():
            got = answer(tokenizer.tokenize, records()[texts][name])
            if not is_error(wanted) and got != wanted["ids"]:
                yield name, wanted["ids"], got


def text_differences(case, tokenizer):
    """(ids, recorded text, ours) of each list of ids whose text differs; none where the recorded program fails."""
    record = CASES[case]
    texts = {**records()["texts"], **records()["surrogates"]}
    decoded = [(entry["ids"], entry["text"]) for entry in record["decode"] if entry["ids"] != [-1]]
    decoded += [([token_id], text) for token_id, text in enumerate(record.get("decode_each", ()))]
    for name, wanted in {**record["encode"], **record["encode_surrogates"]}.items():
        if not is_error(wanted):
            decoded.append((wanted["ids"], wanted.get("detokenized", texts[name])))
    for ids, wanted in decoded:
        got = answer(tokenizer.detokenize, ids)
        if not is_error(wanted) and got != wanted:
            yield ids, wanted, got


def role_differences(case, found):
    """(role, recorded id, ours) of each special id that differs; a recorded -1 says, as None, that there is none."""
    recorded = CASES[case]["properties"]
    for role in ("eod", *ROLES):
        wanted = None if recorded[role] == -1 else recorded[role]
        if not is_error(wanted) and getattr(found, role) != wanted:
            yield role, wanted, getattr(found, role)
    others = recorded["additional_special_tokens_ids"]
    if not is_error(others) and list(found.additional_special_tokens_ids) != (others or []):
        yield "additional", others, found.additional_special_tokens_ids


def size_differences(case, options):
    """Vocabulary sizes that differ, as they are and as training pads them."""
    record, found = CASES[case], facts(options)
    if found.vocab_size != record["properties"]["vocab_size"]:
        yield "vocab_size", record["properties"]["vocab_size"], found.vocab_size
    size = training_vocab_size(options)
    for entry in record["padded_vocab_size"]:
        padded = padded_vocab_size(size, entry["make_vocab_size_divisible_by"], entry["tensor_model_parallel_size"])
        if padded != entry["padded_vocab_size"]:
            yield entry, padded


@pytest.mark.parametrize("case", RECORDED)
def test_a_record(case, folders):
    """Ids of 72 texts, texts of some hundred lists of ids, special ids and sizes equal the record, but for the kinds in
    `OTHERWISE`, of which at least one does differ."""
    options = options_of(case, folders)
    tokenizer = build_tokenizer(options)
    assert tokenizer.facts == facts(options), "the same with the library as without"
    differences = {
        "ids": list(id_differences(case, tokenizer)),
        "text": list(text_differences(case, tokenizer)),
        "roles": list(role_differences(case, tokenizer.facts)),
        "size": list(size_differences(case, options)),
    }
    contradicts, _ = OTHERWISE.get(case, ((), ""))
    assert {kind: found[:3] for kind, found in differences.items() if found and kind not in contradicts} == {}
    assert {kind for kind in contradicts if differences[kind]} or not contradicts


@pytest.mark.parametrize("case", sorted(case for case, (_, reason) in OTHERWISE.items() if reason == _HEAD))
def test_mains_ids_and_texts_are_there_with_the_older_flag(case, folders):
    """--legacy-tokenizer gives the ids and texts of Megatron's main branch, but for blanks before punctuation, which
    BERT's folder asks to remove and the main branch keeps."""
    tokenizer = build_tokenizer(options_of(case, folders, "--legacy-tokenizer"))
    assert list(id_differences(case, tokenizer)) == []
    assert [got for _, wanted, got in text_differences(case, tokenizer) if got != without_blanks(wanted)] == []


@pytest.mark.parametrize("case", REFUSED)
def test_an_error_that_is_recorded_is_one_in_words(case, folders):
    """A record in which building the tokenizer failed is an error here that names a flag."""
    with pytest.raises(ValueError, match=r"^--tokenizer-(special-tokens|model .*vocab\.json): .*;"):
        build_tokenizer(options_of(case, folders))


@pytest.mark.parametrize("case", CHATS)
def test_conversations_by_the_folders_own_template(case, folders):
    """Ids of conversations by the folder's chat template equal the record, but for two of hf_llama, where transformers
    5 reads blanks behind a special token otherwise than 4."""
    tokenizer = build_tokenizer(options_of(case, folders))
    differing = [
        entry["text"]
        for entry in CASES[case]["chat"]
        if tokenizer.apply_chat_template(entry["messages"], entry["add_generation_prompt"]) != entry["ids"]
    ]
    assert all("  spaces  " in text for text in differing)
    assert len(differing) == (2 if case == "hf_llama.transformers5_chat" else 0)


def test_the_class_that_a_folder_names_is_heeded_as_by_transformers_4(folders, tmp_path):
    """A byte-level folder with tokenizer_class LlamaTokenizerFast, as DeepSeek publishes, adds BOS, and EOS with
    add_eos_token, as transformers 4 does; `encode` adds neither."""
    folder = shutil.copytree(folders / "hf_deepseek", tmp_path / "hf_deepseek")
    plain = build_tokenizer(options_of("hf_deepseek.legacy", tmp_path))
    path = folder / "tokenizer_config.json"
    config = {**json.loads(path.read_text()), "tokenizer_class": "LlamaTokenizerFast", "add_eos_token": True}
    path.write_text(json.dumps(config))
    tokenizer = build_tokenizer(options_of("hf_deepseek.legacy", tmp_path))
    for text in records()["texts"].values():
        ids = plain.tokenize(text)
        assert tokenizer.tokenize(text) == [tokenizer.bos, *ids, tokenizer.eos]
        assert tokenizer.encode(text) == ids


def test_mindspeeds_tokenizer_takes_no_further_tokens(folders):
    """--tokenizer-special-tokens beside PretrainedFromHF, which has none in MindSpeed-LLM, changes neither size nor
    ids."""
    folder = str(folders / "hf_qwen2")
    plain = build_tokenizer(TokenizerOptions("PretrainedFromHF", folder))
    given = build_tokenizer(TokenizerOptions("PretrainedFromHF", folder, tokenizer_special_tokens=("<mine>",)))
    assert given.tokenize("a<mine>b") == plain.tokenize("a<mine>b") and given.facts == plain.facts


def test_every_record_is_looked_at():
    """Each of the 104 records is used by one of the tests above."""
    assert len(RECORDED) + len(CHATS) + len(REFUSED) == len(CASES) == 104
