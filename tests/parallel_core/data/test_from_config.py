"""The tokenizer of a run, from its config: special ids and sizes."""

import pytest

from mapping.reading import read
from parallel_core.data.from_config import tokenizer_facts, tokenizer_of
from parallel_core.data.tokenizers import library as libraries
from tests.support.tokenizer_records import records, unpack

RUN = (
    "--num-layers 1 --hidden-size 8 --num-attention-heads 1 --seq-length 8 --max-position-embeddings 8 "
    "--micro-batch-size 1 --train-iters 1 --lr 1e-3 --mock-data --reset-position-ids --eod-mask-loss"
)


def config(flags: str):
    return read(f"{RUN} {flags}".split()).config


@pytest.mark.parametrize(
    ("flags", "ids"),
    [
        ("", (100, None)),
        ("--eos-token-id 3", (3, None)),
        ("--pad-token-id 0", (100, 0)),
        ("--eos-token-id 0", (0, None)),
    ],
)
def test_ids_of_the_user_replace_the_tokenizers(flags, ids):
    """--eos-token-id and --pad-token-id replace the tokenizer's ids, both in training's facts and in the tokenizer that
    decodes; ids that are not given stay."""
    made = config(f"--tokenizer-type NullTokenizer --vocab-size 100 {flags}")
    for found in (tokenizer_facts(made), tokenizer_of(made)):
        assert (found.eod, found.pad, found.vocab_size) == (*ids, 101)


@pytest.mark.parametrize(
    "case",
    [
        *(
            "hf_qwen2.core_added",
            "hf_llama.legacy",
            "sp_llama.sp.legacy",
            "sp_symbols.core_legacy",
            "null_1000.head_ids",
        ),
        *("tiktoken_a.core_specials", "hf_bert.BertWordPieceLowerCase", "gpt2_bpe.legacy", "hf_t5.mindspeed"),
    ],
)
def test_a_run_knows_its_tokenizer_by_the_recorded_flags(case, tmp_path, monkeypatch):
    """The recorded tokenizer flags, unchanged, give the recorded end-of-document id and vocabulary size, and the padded
    size, without any tokenizer package."""
    monkeypatch.setattr(libraries, "find_spec", lambda name: None)
    record, folder = records()["cases"][case], unpack(tmp_path) / case.partition(".")[0]
    flags = " ".join(record["flags"]).replace("{T}", str(folder))
    reading = read(f"{RUN} {flags} --make-vocab-size-divisible-by 1000".split(), read_vocabulary=True)
    assert reading.errors == []
    found = tokenizer_facts(reading.config)
    assert found.eod == record["properties"]["eod"] or "error" in str(record["properties"]["eod"])
    assert found.vocab_size == record["properties"]["vocab_size"] or case == "sp_symbols.core_legacy"
    assert reading.config.model_config.vocab_size == -(-found.vocab_size // 1000) * 1000
