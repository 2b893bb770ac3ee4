"""Fine-tuning from a jsonl: preprocess, then train on conversations, in full and with adapters, on several layouts."""

import json

import numpy as np
import pytest

from parallel_core.data.datasets import datasets_provider
from parallel_core.data.preprocess.command_line import main
from parallel_core.data.tokenizers import TokenizerOptions, build_tokenizer
from tests.support.distributed import run
from tests.support.engine import config_of
from tests.support.instruction import inputs
from tests.support.pretraining import pretrain_tiny

MODEL = (
    "--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 128 --max-position-embeddings 128 --lr 1e-2 "
    "--micro-batch-size 2 --global-batch-size 4 --train-iters 3 --attention-dropout 0 --hidden-dropout 0 "
    "--eval-iters 0 --init-method-std 0.2 --log-interval 1 --num-workers 0 --split 100,0,0 "
    "--tokenizer-type PretrainedFromHF --padded-vocab-size 3072 --position-embedding-type rope --swiglu "
)
SFT = "--stage sft --is-instruction-dataset --finetune --prompt-type qwen"
LORA = "--lora-r 4 --lora-alpha 8 --lora-target-modules linear_qkv linear_proj"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """An Alpaca jsonl, preprocessed; its --data-path."""
    folder = tmp_path_factory.mktemp("data")
    lines = (inputs() / "input" / "alpaca_en.jsonl").read_text().splitlines()[:16]
    (folder / "alpaca.jsonl").write_text("\n".join(lines))
    main(
        [
            *("--input", str(folder / "alpaca.jsonl"), "--output-prefix", str(folder / "alpaca")),
            *("--tokenizer-type", "PretrainedFromHF", "--tokenizer-name-or-path", tokenizer()),
            *("--handler-name", "AlpacaStyleInstructionHandler", "--prompt-type", "qwen"),
        ]
    )
    return str(folder / "alpaca")


def tokenizer() -> str:
    return str(inputs() / "tokenizers" / "hf_qwen2")


def losses(backend, flags: str) -> list[float]:
    """Of each step."""
    from pynative.training.callbacks import Callback

    found = []

    class Seen(Callback):
        def on_step_end(self, state):
            found.append(float(state.result.loss))

    provider = datasets_provider(config_of(flags, backend.world_size))
    pretrain_tiny(backend, flags, train_valid_test_datasets_provider=provider, callbacks=[Seen()])
    return found


def trained(ranks: int, data: str, more: str) -> list[float]:
    """The losses, which are alike on all ranks that compute them."""
    flags = f"{MODEL} {SFT} --tokenizer-name-or-path {tokenizer()} --data-path {data} {more}"
    return run(ranks, losses, flags)[-1]


def test_training_on_two_ranks_is_that_on_one(data):
    """All weights, or adapters alone, which begin as nothing: tp2 gives the losses of one rank."""
    alone = {adapters: trained(1, data, adapters) for adapters in ("", LORA)}
    for adapters, expected in alone.items():
        together = trained(2, data, f"{adapters} --tensor-model-parallel-size 2")
        assert len(expected) == 3 and np.allclose(expected, together, rtol=2e-5, atol=0)
    whole, adapted = alone.values()
    assert whole[-1] < whole[0] == adapted[0] and abs(whole[-1] - adapted[-1]) > 0.01


def test_padding_costs_no_loss(data):
    """Samples that are filled up to their batch's longest alone: the same losses, with two stages as well."""
    whole = trained(1, data, "")
    assert np.allclose(whole, trained(1, data, "--no-pad-to-seq-lengths"), rtol=2e-5, atol=0)
    stages = trained(2, data, "--no-pad-to-seq-lengths --pipeline-model-parallel-size 2")
    assert np.allclose(whole, stages, rtol=2e-5, atol=0)


def test_answers_alone_carry_loss(data):
    """The labels that count are the answer and the end of text."""
    flags = f"{MODEL} {SFT} --tokenizer-name-or-path {tokenizer()} --data-path {data} --no-shuffle"
    train, valid, test = datasets_provider(config_of(flags, 1))((4, 0, 0))
    assert valid is None and test is None
    made = build_tokenizer(TokenizerOptions("PretrainedFromHF", tokenizer_model=tokenizer()))
    answers = [json.loads(line)["output"] for line in (inputs() / "input" / "alpaca_en.jsonl").read_text().splitlines()]
    for number in range(4):
        batch = train.collate([train[number]])
        counted = batch["labels"][0][batch["loss_mask"][0] > 0].tolist()
        assert made.detokenize(counted) == answers[number] + "<|im_end|>"
