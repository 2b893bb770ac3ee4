"""Pai-Megatron-Patch's raw data (`--dataset LLama-Pretrain-Raw` and `LLama-SFT-Raw`): a question and its answer in each
record, tokenised when a training begins."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from parallel_core.config import AllConfig
from parallel_core.data.from_config import tokenizer_of
from parallel_core.data.instruction.encoding import IGNORED
from parallel_core.data.instruction.from_config import own_ids
from parallel_core.data.instruction.records import BadRecord, Row, UnreadableRecord, read_records, text_under
from parallel_core.data.tokenizers import MegatronTokenizer
from parallel_core.numerics.dtypes import Array

QUESTIONS, ANSWERS = ("instruction", "query"), ("output", "content", "response")
"""Keys of a record; the first that is there counts. `input` may come with a question."""

Encoded = tuple[list[int], list[int]]
"""Ids and, not shifted, labels."""


@dataclass(frozen=True)
class RawRules:
    """Rules that turn records into samples. form: the value of --dataset; length: the most tokens of a record in a
    sample; eos: the id put behind an answer with LLama-Pretrain-Raw; pad: the id of padding, or of the unknown token,
    which carries no loss as a label; None: the tokenizer has neither."""

    form: str
    """The value of `--dataset`."""
    length: int
    """The most tokens of a record in a sample, which is padded to the sequence length."""
    eos: int
    """The id put behind an answer with LLama-Pretrain-Raw."""
    pad: int | None
    """Id of padding, else of the unknown token, which as a label carries no loss; None: the tokenizer has neither."""


def _under(row: Row, keys: Sequence[str]) -> str:
    key = next((key for key in keys if key in row), None)
    if key is None:
        raise BadRecord(f"needs one of the keys {', '.join(keys)}")
    return text_under(row, key)


def encoded(row: Row, tokenizer: MegatronTokenizer, rules: RawRules) -> Encoded | None:
    """Ids and labels (not shifted) of a record; None for a record that Patch leaves out. As one text
    (LLama-Pretrain-Raw), with `eos` behind it, it is cut to `rules.length` + 1 ids, and left out if none of these is
    `eos`; as messages it is cut to `rules.length` ids, and left out if the question alone has as many or more.

    Raises BadRecord for a record that has no question or no answer, something else than text there, or something else
    than text or null in `input`, or whose question the chat template writes differently once it is answered; ValueError
    as `MegatronTokenizer.encode` and, for messages, `apply_chat_template`.
    """
    asked, answer = _under(row, QUESTIONS), _under(row, ANSWERS)
    more = [] if row.get("input") is None else [text_under(row, "input")]
    if rules.form == "LLama-Pretrain-Raw":
        return _as_text(" ".join([asked, *more]), answer, tokenizer, rules)
    return _as_messages("".join([asked, *more]), answer, tokenizer, rules)


def _as_text(asked: str, answer: str, tokenizer: MegatronTokenizer, rules: RawRules) -> Encoded | None:
    """Question and answer as one text, ended by `eos`; None where none of the first length + 1 ids is `eos`."""
    room = rules.length + 1
    ids = [*tokenizer.encode(asked + answer), rules.eos][:room]
    if rules.eos not in ids:
        return None
    masked = sum(token != rules.pad for token in tokenizer.encode(asked)[:room])
    return ids, [IGNORED] * masked + ids[masked:]


def _as_messages(asked: str, answer: str, tokenizer: MegatronTokenizer, rules: RawRules) -> Encoded | None:
    """A user's and an assistant's message by the chat template, cut to `length` ids; None where the question alone has
    as many."""
    messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
    source, whole = (tokenizer.apply_chat_template(messages[:number]) for number in (1, 2))
    if whole[: len(source)] != source:
        raise BadRecord("the tokenizer's chat template writes a question differently once it is answered")
    if len(source) >= rules.length:
        return None
    ids = whole[: rules.length]
    return ids, [IGNORED] * len(source) + ids[len(source) :]


class RawRecords:
    """The records of a file or folder that `encoded` does not leave out, as ids and labels."""

    def __init__(self, path: str | Path, tokenizer: MegatronTokenizer, rules: RawRules) -> None:
        """Raises ValueError, naming the line, for a record that cannot be trained on, and for a file that cannot be
        read, or of which no record is left."""
        self.path, self.rules = str(path), rules
        self.samples: list[tuple[Array, Array]] = []
        self.places: list[str] = []
        self.left_out = 0
        for record in read_records(path):
            try:
                if isinstance(record.row, UnreadableRecord):
                    raise record.row
                found = encoded(record.row, tokenizer, rules)
            except ValueError as error:
                raise ValueError(f"{path}: {record.place}: {error}; repair it or take it out") from error
            if found is None:
                self.left_out += 1
                continue
            ids, labels = found
            self.samples.append((np.array(ids, np.int32), np.array(labels, np.int32)))
            self.places.append(record.place)
        if not self.samples:
            rule = f"has no record of {rules.length} tokens or fewer ({self.left_out} are longer)"
            raise ValueError(f"{path}: {rule}; raise --seq-length and --max-padding-length, or give other data")


class RawDataset:
    """Sample i is record i of `RawRecords`, again and again from the first."""

    def __init__(self, records: RawRecords, seq_length: int, size: int) -> None:
        """size: the number of samples that are needed; it is rounded up to whole passes over the records, at least
        one."""
        self.records, self.seq_length = records, seq_length
        self.samples_per_epoch = len(records.samples)
        self.size = max(1, -(-size // self.samples_per_epoch)) * self.samples_per_epoch

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, number: int) -> dict[str, Array]:
        """tokens, labels, loss_mask and position_ids [s]; padding is behind."""
        rules = self.records.rules
        ids, targets = self.records.samples[number % self.samples_per_epoch]
        ids, targets = ids[: rules.length], targets[1:]
        tokens = np.full(self.seq_length, 0 if rules.pad is None else rules.pad, np.int32)
        labels = np.full(self.seq_length, IGNORED, np.int32)
        tokens[: len(ids)], labels[: len(targets)] = ids, targets
        counts = (labels != IGNORED) & (labels != rules.pad)
        return {
            "tokens": tokens,
            "labels": np.where(counts, labels, 0).astype(np.int32),
            "loss_mask": counts.astype(np.float32),
            "position_ids": np.arange(self.seq_length, dtype=np.int32),
        }

    def documents_of(self, number: int) -> str:
        """The file's name and the line, or the number, of the record that a sample is made of, as text."""
        return self.records.places[number % self.samples_per_epoch]


def raw_datasets(config: AllConfig) -> Callable[[Sequence[int | None]], list[RawDataset | None]]:
    """A function from the numbers of samples of train, valid and test to their data, None for one without a file. A
    number is rounded up to whole passes over the file, at least one; None, and with --dataloader-type cyclic any
    number, gives one.

    Reads and tokenises each file once, before that function is called. Raises ValueError for mistakes in the files, for
    a tokenizer without an end of a text if there is no --eos-token-id, and as `tokenizer_of`.
    """
    data, tokenizer = config.dataset_config, tokenizer_of(config)
    rules, length = _rules(config), config.model_config.seq_length
    named = [paths[0] if paths else None for paths in (data.train_data_path, data.valid_data_path, data.test_data_path)]
    files = {path: RawRecords(path, tokenizer, rules) for path in dict.fromkeys(named) if path is not None}

    def build(sizes: Sequence[int | None]) -> list[RawDataset | None]:
        # A loader that shuffles goes through the file once an epoch, whatever the training's length.
        needed = [0 if data.dataloader_type == "cyclic" else size or 0 for size in sizes]
        pairs = zip(named, needed, strict=True)
        return [None if path is None else RawDataset(files[path], length, size) for path, size in pairs]

    return build


def _rules(config: AllConfig) -> RawRules:
    data, found = config.dataset_config, own_ids(config)
    eos = found.eod if found.eos is None else found.eos
    eos = eos if data.eos_token_id is None else data.eos_token_id
    if eos is None:
        raise ValueError(f"--dataset {data.instruction.raw}: the tokenizer lacks an end of a text; give --eos-token-id")
    pad = found.unk if found.pad is None else found.pad
    pad = pad if data.pad_token_id is None else data.pad_token_id
    length = data.instruction.max_padding_length or config.model_config.seq_length
    return RawRules(str(data.instruction.raw), length, eos, pad)
