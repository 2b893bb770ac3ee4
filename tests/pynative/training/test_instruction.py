"""Fine-tuning from a jsonl: preprocess, then train on conversations, in full and with adapters, on several layouts."""

import json

import numpy as np
import pytest

from parallel_core.data.datasets import datasets_provider
from parallel_core.data.indexed_dataset import IndexedDatasetBuilder
from parallel_core.data.instruction.samples import Conversations
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


def preprocessed(folder, name: str, *more: str) -> str:
    """Preprocess 16 Alpaca conversations with these flags; the data set's prefix for --data-path."""
    lines = (inputs() / "input" / "alpaca_en.jsonl").read_text().splitlines()[:16]
    (folder / "alpaca.jsonl").write_text("\n".join(lines))
    main(
        [
            *("--input", str(folder / "alpaca.jsonl"), "--output-prefix", str(folder / name)),
            *("--tokenizer-type", "PretrainedFromHF", "--tokenizer-name-or-path", tokenizer()),
            *("--handler-name", "AlpacaStyleInstructionHandler", "--prompt-type", "qwen", *more),
        ]
    )
    return str(folder / name)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """--data-path of the preprocessed conversations, unpacked."""
    return preprocessed(tmp_path_factory.mktemp("data"), "alpaca")


def tokenizer() -> str:
    return str(inputs() / "tokenizers" / "hf_qwen2")


def losses(backend, flags: str) -> list[float]:
    """Losses of each step of a training with these flags on this rank."""
    from pynative.training.callbacks import Callback

    found = []

    class Seen(Callback):
        def on_step_end(self, state):
            found.append(float(state.result.loss))

    provider = datasets_provider(config_of(flags, backend.world_size))
    pretrain_tiny(backend, flags, train_valid_test_datasets_provider=provider, callbacks=[Seen()])
    return found


def trained(ranks: int, data: str, more: str) -> list[float]:
    """Losses of fine-tuning on `data` on so many ranks, of the last rank."""
    flags = f"{MODEL} {SFT} --tokenizer-name-or-path {tokenizer()} --data-path {data} {more}"
    return run(ranks, losses, flags)[-1]


def test_training_on_two_ranks_is_that_on_one(data):
    """tp2 has one rank's losses, with all weights and with adapters alone, whose B begins at zero."""
    alone = {adapters: trained(1, data, adapters) for adapters in ("", LORA)}
    for adapters, expected in alone.items():
        together = trained(2, data, f"{adapters} --tensor-model-parallel-size 2")
        assert len(expected) == 3 and np.allclose(expected, together, rtol=2e-5, atol=0)
    whole, adapted = alone.values()
    assert whole[-1] < whole[0] == adapted[0] and abs(whole[-1] - adapted[-1]) > 0.01


def test_padding_costs_no_loss(data):
    """--no-pad-to-seq-lengths, which pads to the longest of a batch, has the losses of full padding, with pp2
    as well."""
    whole = trained(1, data, "")
    assert np.allclose(whole, trained(1, data, "--no-pad-to-seq-lengths"), rtol=2e-5, atol=0)
    lengths = train_lengths(data)
    assert len(set(lengths)) > 1, "micro-batches are all of one length"
    stages = trained(2, data, "--no-pad-to-seq-lengths --pipeline-model-parallel-size 2")
    assert np.allclose(whole, stages, rtol=2e-5, atol=0)


def train_lengths(data: str) -> list[int]:
    """The length to which each of the first 12 samples is padded, by which micro-batches are cut."""
    flags = f"{MODEL} {SFT} --tokenizer-name-or-path {tokenizer()} --data-path {data} --no-pad-to-seq-lengths"
    train, _, _ = datasets_provider(config_of(flags, 1))((12, 0, 0))
    return train.collate([train[number] for number in range(12)])["lengths"].tolist()


def test_answers_alone_carry_loss(data):
    """Only tokens of the answer and the end of text have labels that count."""
    flags = f"{MODEL} {SFT} --tokenizer-name-or-path {tokenizer()} --data-path {data} --no-shuffle"
    train, valid, test = datasets_provider(config_of(flags, 1))((4, 0, 0))
    assert valid is None and test is None
    made = build_tokenizer(TokenizerOptions("PretrainedFromHF", tokenizer_model=tokenizer()))
    answers = [json.loads(line)["output"] for line in (inputs() / "input" / "alpaca_en.jsonl").read_text().splitlines()]
    for number in range(4):
        batch = train.collate([train[number]])
        counted = batch["labels"][0][batch["loss_mask"][0] > 0].tolist()
        assert made.detokenize(counted) == answers[number] + "<|im_end|>"


def test_packed_conversations_have_the_loss_of_single_ones(data, tmp_path):
    """--neat-pack with --reset-attention-mask: one step over packed conversations has the loss of unpacked ones, with
    cp2 too; without the mask it differs."""
    packed = preprocessed(tmp_path, "packed", "--pack", "--neat-pack", "--seq-length", "256")
    packs = len(Conversations(packed))
    assert 1 < packs < 16
    one_step = MODEL.replace("--train-iters 3", "--train-iters 1").replace("128 ", "256 ")
    one_step = one_step.replace("--micro-batch-size 2 --global-batch-size 4", "--micro-batch-size 1")

    def first_loss(ranks: int, path: str, batch: int, more: str = "") -> float:
        flags = f"{one_step} {SFT} --calculate-per-token-loss --tokenizer-name-or-path {tokenizer()}"
        return run(ranks, losses, f"{flags} --data-path {path} --global-batch-size {batch} {more}")[-1][0]

    alone = first_loss(1, data, 16)
    kept_apart = "--neat-pack --reset-attention-mask"
    assert first_loss(1, packed, packs, kept_apart) == pytest.approx(alone, rel=1e-6)
    assert first_loss(2, packed, packs, f"{kept_apart} --context-parallel-size 2") == pytest.approx(alone, rel=1e-5)
    assert abs(first_loss(1, packed, packs) - alone) > 1e-4  # without it conversations see each other


def test_messages_are_trained_on_as_they_are(tmp_path):
    """Megatron's --sft on a jsonl of messages, two conversations in a row: both ranks have the same finite losses."""
    rows = [json.loads(line) for line in (inputs() / "input" / "messages.jsonl").read_text().splitlines()[:8]]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    flags = MODEL.replace("PretrainedFromHF", "SFTTokenizer").replace("--train-iters 3", "--train-iters 2")
    folder = inputs() / "tokenizers" / "hf_nemotron"
    found = run(2, losses, f"{flags} --sft --tokenizer-model {folder} --data-path {tmp_path / 'rows.jsonl'}")
    assert found[0] == found[1] and len(found[0]) == 2 and np.isfinite(found[0]).all()


@pytest.mark.parametrize("form", ["LLama-Pretrain-Raw", "LLama-SFT-Raw"])
def test_raw_questions_are_trained_on_as_they_are(form):
    """Pai-Megatron-Patch's --dataset of a jsonl's records: tp2 has one rank's losses, and they fall."""
    path = inputs() / "input" / "alpaca_en.jsonl"
    flags = f"{MODEL.replace('--split 100,0,0', '')} --tokenizer-name-or-path {tokenizer()} --train-data-path {path}"
    alone, (_, together) = (
        run(ranks, losses, f"{flags} --dataset {form} --tensor-model-parallel-size {ranks}") for ranks in (1, 2)
    )
    assert len(together) == 3 and np.allclose(alone[0], together, rtol=2e-5, atol=0) and together[-1] < together[0]


def test_labels_that_stand_behind_their_tokens(tmp_path):
    """--train-mode finetune: each conversation's loss counts alike, and --reset-position-ids keeps packed
    ones apart."""
    tokens = np.arange(1, 129)
    labels = np.full(128, -100)
    tokens[9], labels[4:10] = -1 - tokens[9], 7  # a conversation of 10 tokens ends here
    labels[20:40] = 8
    with IndexedDatasetBuilder(tmp_path / "labelled", np.int32) as builder:
        for _ in range(8):
            builder.add_document([*tokens, *labels], [256])
        builder.finalize()
    flags = MODEL.replace("PretrainedFromHF", "NullTokenizer --vocab-size 3000") + "--train-mode finetune"
    flags += f" --reset-position-ids --data-path {tmp_path / 'labelled'}"
    (train, _, _) = datasets_provider(config_of(flags, 1))((4, 0, 0))
    sample = train[0]
    assert sample["tokens"].tolist() == list(range(1, 129))
    assert sample["document_starts"].tolist() == [0] * 10 + [10] * 118
    assert sample["loss_mask"][4:10].sum() == pytest.approx(1) and sample["loss_mask"][20:40].sum() == pytest.approx(1)
    assert sample["loss_mask"].sum() == pytest.approx(2) and set(sample["labels"].tolist()) == {0, 7, 8}
    found = run(1, losses, flags)[0]
    assert len(found) == 3 and found[-1] < found[0]
