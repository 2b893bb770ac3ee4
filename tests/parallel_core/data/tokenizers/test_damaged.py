"""Damaged tokenizer files: an error that names the folder, or a tokenizer that works; never a traceback."""

import json
import random
import shutil
from pathlib import Path

import pytest

from parallel_core.data.tokenizers import build_tokenizer, facts
from tests.support.tokenizer_records import make_slow_folder, options, slow_folders, unpack

KINDS = {
    "hf_qwen2": ("tokenizer.json", "--tokenizer-type HuggingFaceTokenizer --tokenizer-model {}"),
    "hf_llama": ("tokenizer_config.json", "--tokenizer-type PretrainedFromHF --tokenizer-name-or-path {}"),
    "hf_t5": ("tokenizer.json", "--tokenizer-type HuggingFaceTokenizer --tokenizer-model {} --legacy-tokenizer"),
    "hf_nemotron": ("tokenizer_config.json", "--tokenizer-type SFTTokenizer --tokenizer-model {}"),
    "hf_bert": ("vocab.txt", "--tokenizer-type BertWordPieceLowerCase --vocab-file {}/vocab.txt"),
    "sp_symbols": ("tokenizer.model", "--tokenizer-type SentencePieceTokenizer --tokenizer-model {}/tokenizer.model"),
    "tiktoken_a": (
        "vocab.json",
        "--tokenizer-type TikTokenizer --tokenizer-model {}/vocab.json --tiktoken-num-special-tokens 100 "
        "--vocab-size 2304",
    ),
    "gpt2_bpe": (
        "vocab.json",
        "--tokenizer-type GPT2BPETokenizer --vocab-file {0}/vocab.json --merge-file {0}/merges.txt",
    ),
    "llama": ("tokenizer.model", "--tokenizer-type HuggingFaceTokenizer --tokenizer-model {}"),
    "llama_older": ("added_tokens.json", "--tokenizer-type HuggingFaceTokenizer --tokenizer-model {}"),
    "t5": ("tokenizer_config.json", "--tokenizer-type HuggingFaceTokenizer --tokenizer-model {}"),
    "gpt2_bos": ("merges.txt", "--tokenizer-type PretrainedFromHF --tokenizer-name-or-path {}"),
    "qwen2": ("vocab.json", "--tokenizer-type PretrainedFromHF --tokenizer-name-or-path {}"),
}
"""Folder -> (the file that is damaged, the flags that read the folder)."""
VALUES = (None, -1, 1.5, 10**12, "x", "", True, [], {}, [[]], {"id": "x"}, "\ud800")


def cut(content: bytes, draws: random.Random) -> bytes:
    """The content up to a random place."""
    return content[: draws.randrange(len(content))]


def turn_bits(content: bytes, draws: random.Random) -> bytes:
    """The content with up to 20 random bits flipped."""
    changed = bytearray(content)
    for _ in range(20):
        changed[draws.randrange(len(changed))] ^= 1 << draws.randrange(8)
    return bytes(changed)


def replace_value(content: bytes, draws: random.Random) -> bytes:
    """JSON with one value, mostly near its root, replaced by another of `VALUES`."""
    try:
        root = json.loads(content)
    except ValueError:
        return b"\x00\xff" + content
    here = root
    while True:
        key = draws.choice(list(here) if isinstance(here, dict) else range(len(here)))
        if not isinstance(here[key], dict | list) or not here[key] or draws.random() < 0.3:
            here[key] = draws.choice(VALUES)
            return json.dumps(root).encode()
        here = here[key]


DAMAGES = (cut, turn_bits, replace_value)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    tokenizers = unpack(tmp_path_factory.mktemp("tokenizers"))
    for name in KINDS.keys() & slow_folders().keys():
        make_slow_folder(name, tokenizers, tokenizers / name)
    return tokenizers


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("name", KINDS)
def test_a_damaged_file_is_named(name, damage, folders, tmp_path):
    """Nine draws of each damage: reading facts (without a library) and building the tokenizer fail with an error that
    names the folder, or work; some fail."""
    file, flags = KINDS[name]
    folder = tmp_path / name
    shutil.copytree(folders / name, folder)
    whole, refused = (folder / file).read_bytes(), 0
    for seed in range(9):
        (folder / file).write_bytes(damage(whole, random.Random(seed)))
        for use in (facts, build_tokenizer):
            refused += not works(use, folder, flags)
    assert refused > 0


def works(use, folder: Path, flags: str) -> bool:
    """Whether `use` reads the folder and its result can be used; False for an error, which must name the folder."""
    try:
        made = use(options(flags.format(folder).split()))
    except ValueError as error:
        assert str(folder) in str(error) or "--sft-tokenizer" in str(error), error
        return False
    assert made.vocab_size >= 0
    if use is build_tokenizer:
        assert isinstance(made.detokenize(made.tokenize("a text \u4f60")), str)
    return True
