"""The tokenizer that a configuration names, and what training knows of it."""

import pytest

from mapping.reading import read
from parallel_core.data.from_config import tokenizer_facts, tokenizer_of
from tests.support.assets import ROOT

VOCABULARY = ROOT / "examples" / "gpt" / "vocab"
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
    """--eos-token-id and --pad-token-id, in training and in what decodes; one that is not given stays."""
    made = config(f"--tokenizer-type NullTokenizer --vocab-size 100 {flags}")
    for found in (tokenizer_facts(made), tokenizer_of(made)):
        assert (found.eod, found.pad, found.vocab_size) == (*ids, 101)
