"""Megatron's `--sft`: rows of messages, tokenised while training, several conversations of a row in one sample."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from parallel_core.data.dataset_config import GPTDatasetConfig, Split
from parallel_core.data.instruction.encoding import IGNORED
from parallel_core.data.instruction.records import BadRecord, Row, UnreadableRecord, are_messages, read_records
from parallel_core.data.tokenizers import MegatronTokenizer
from parallel_core.numerics.dtypes import Array

Message = dict[str, str]
ROLES = ("system", "user", "tool", "assistant")


@dataclass(frozen=True)
class PromptFormat:
    """The form of messages under a `--sft-tokenizer-prompt-format`. around: role -> the texts before and behind a
    content, or None where the tokenizer's chat template writes conversations, and every token carries loss (strips,
    left_out and prefix then do nothing); strips: blanks around contents are left out; left_out: words that are left out
    of messages other than the assistant's; prefix: the number of tokens at the beginning of an answer without loss;
    appends_eod: an end of document follows a conversation that does not end with one."""

    around: dict[str, tuple[str, str]] | None
    """Role -> the texts before and behind its content; a message of another role is written as nothing. None: the
    tokenizer's chat template writes the conversation, and every token carries loss."""
    strips: bool = True
    """Whether blanks around contents are left out."""
    left_out: tuple[str, ...] = ()
    """Words that are left out of messages other than the assistant's."""
    prefix: int = 0
    """The number of tokens at the beginning of an answer that carry no loss."""
    appends_eod: bool = True
    """Whether an end of document follows a conversation that does not end with one."""

    def text(self, message: Message) -> str:
        """The text of one message; "" for a role that is not written. Raises AssertionError where `around` is None."""
        assert self.around is not None
        role, content = message["role"], message["content"]
        if role not in self.around:
            return ""
        for word in self.left_out if role != "assistant" else ():
            content = content.replace(word, "")
        before, behind = self.around[role]
        return before + (content.strip() if self.strips else content) + behind


_USER, _SYSTEM = "<SPECIAL_11>User\n", ("<SPECIAL_10>System\n", "\n")
PROMPT_FORMATS = {
    "nemotron-h-aligned": PromptFormat(
        {"system": _SYSTEM, "user": (_USER, "\n<SPECIAL_11>Assistant\n"), "assistant": ("", "\n")}
    ),
    "nemotron-nano-v2": PromptFormat(
        {"system": _SYSTEM, "user": (_USER, "\n"), "assistant": ("<SPECIAL_11>Assistant\n", "\n<SPECIAL_12>\n")},
        left_out=("/think", "/no_think"),
        prefix=3,
    ),
    "identity": PromptFormat(dict.fromkeys(ROLES, ("", "")), strips=False, appends_eod=False),
    "default": PromptFormat(None, appends_eod=False),
}
"""Name -> format: Megatron 0.16.1 has the first two, and its main the others, where nothing is appended."""


def encoded(
    conversation: Sequence[Message], tokenizer: MegatronTokenizer, form: PromptFormat
) -> tuple[list[int], list[int]]:
    """The ids of a conversation, and their targets (not shifted), -100 where there is no loss. Raises BadRecord where a
    message's tokens join with its neighbours', ValueError as the tokenizer's `encode` and, if `form.around` is None,
    its `apply_chat_template`."""
    if form.around is None:
        ids = tokenizer.apply_chat_template(conversation)
        return ids, list(ids)
    ids = tokenizer.encode("".join(map(form.text, conversation)))
    targets = [IGNORED] * len(ids)
    at = 0
    for number, message in enumerate(conversation):
        turn = tokenizer.encode(form.text(message))
        if ids[at : at + len(turn)] != turn:
            raise BadRecord(
                f"message {number}: its tokens join with its neighbours' ({message['content'][:40]!r}); answers must "
                "have text, and no blanks at their ends"
            )
        if message["role"].lower() == "assistant":
            targets[at + form.prefix : at + len(turn)] = turn[form.prefix :]
        at += len(turn)
    return ids, targets


def conversations(row: Row | UnreadableRecord) -> list[list[Message]]:
    """The conversations of a row: a system message begins a new one. Raises BadRecord for a row of another form, an
    unknown role, and an answer that follows neither a user's nor a tool's message, but for one that begins the row."""
    if isinstance(row, UnreadableRecord):
        raise row
    messages = row.get("messages")
    if not are_messages(messages):
        raise BadRecord(f"'messages' must be a list of objects with role and content: is {messages!r}"[:200])
    found: list[list[Message]] = []
    for number, message in enumerate(messages):
        role = message["role"].lower()
        if role not in ROLES:
            raise BadRecord(f"message {number}: role {message['role']!r} must be one of {', '.join(ROLES)}")
        if role == "system" or not found:
            found.append([])
        if role == "assistant" and found[-1] and found[-1][-1]["role"].lower() not in ("user", "tool"):
            raise BadRecord(f"message {number}: an answer must follow a question")
        found[-1].append(message)
    return found


class ConversationRows:
    """The rows of a file of messages, or of all files of a folder, checked as far as that needs no tokenizer."""

    def __init__(self, path: str | Path) -> None:
        """Raises ValueError, naming the line, for rows that cannot be trained on, and for a file that cannot be read or
        has no row."""
        self.places: list[str] = []
        self.rows: list[list[list[Message]]] = []
        for record in read_records(path):
            try:
                self.rows.append(conversations(record.row))
            except BadRecord as error:
                raise ValueError(f"--data-path {path}: {record.place}: {error}; repair it or take it out") from error
            self.places.append(record.place)
        if not self.rows:
            raise ValueError(f"--data-path {path}: has no row")

    @property
    def sequence_lengths(self) -> NDArray[np.int32]:
        """1 for each row [n]: splits are cut by rows."""
        return np.ones(len(self.rows), np.int32)


@dataclass(kw_only=True)
class SFTDatasetConfig(GPTDatasetConfig):
    """The options of GPT's data, and those of conversations: the prompt format, and the context-parallel size, by which
    conversations are padded."""

    form: PromptFormat
    context_parallel_size: int = 1


class SFTDataset:
    """Samples of files of messages: sample i is row i of its split, over and over."""

    def __init__(
        self,
        dataset: ConversationRows,
        indices: NDArray[np.int32],
        num_samples: int | None,
        index_split: Split,
        config: SFTDatasetConfig,
        dataset_path: str | None = None,
    ) -> None:
        """Take GPTDataset's arguments. Raises ValueError when samples are needed and the split has no row."""
        self.rows, self.indices, self.config, self.index_split = dataset, indices, config, index_split
        self.num_samples = len(indices) if num_samples is None else num_samples
        if self.num_samples and not len(indices):
            raise ValueError(f"the {index_split.name} split of {dataset_path} has no row; raise its share in --split")

    @staticmethod
    def open(path_prefix: str | Path | None, config: GPTDatasetConfig) -> ConversationRows:
        """The rows of the folder or of the file `path_prefix`, which is given with its ending, such as .jsonl. Raises
        ValueError as `ConversationRows`, AssertionError for None."""
        assert path_prefix is not None
        return ConversationRows(path_prefix)

    def __len__(self) -> int:
        return self.num_samples

    def documents_of(self, number: int) -> str:
        """The file's name and the line, or the number, of the row that sample `number` is made of, as text."""
        return self.rows.places[int(self.indices[number % len(self.indices)])]

    def packed(self, number: int) -> dict[str, NDArray[np.int32]]:
        """Sample `number`: tokens, labels of the next token (-100 or padding: no loss), position_ids from the start of
        each conversation, all [s]; and cu_seqlens [n + 1], the positions, up to s, where n conversations begin, and s.

        A row that is longer than a sequence is cut at the end, with padding as the last label. With context parallelism
        each conversation is padded to a multiple of twice the context-parallel size. Raises ValueError for a row that
        cannot be tokenised and for a tokenizer without an end of a document that the form appends; AssertionError for a
        tokenizer without an id of padding, and for `Facts` in place of a tokenizer.
        """
        config, row = self.config, int(self.indices[number % len(self.indices)])
        assert isinstance(config.tokenizer, MegatronTokenizer) and config.tokenizer.pad is not None
        pad, length = config.tokenizer.pad, config.sequence_length
        ids: list[int] = []
        targets: list[int] = []
        starts = [0]
        for conversation in self.rows.rows[row]:
            more, of_more = self._encoded(row, conversation)
            filling = -(len(ids) + len(more)) % (2 * config.context_parallel_size)
            filling = filling if config.context_parallel_size > 1 else 0
            ids += more + [pad] * filling
            targets += of_more + [pad] * filling
            starts.append(len(ids))
            if len(ids) > length:
                break
        ids, targets = ([*part[:length], *[pad] * (length + 1 - len(part[:length]))] for part in (ids, targets))
        ends = np.array([*starts[:-1], length], np.int32)
        positions = np.arange(length, dtype=np.int32)
        positions -= ends[:-1][np.searchsorted(ends[:-1], positions, side="right") - 1]
        return {
            "tokens": np.array(ids[:-1], np.int32),
            "labels": np.array(targets[1:], np.int32),
            "position_ids": positions,
            "cu_seqlens": ends,
        }

    def _encoded(self, row: int, conversation: list[Message]) -> tuple[list[int], list[int]]:
        tokenizer, form = self.config.tokenizer, self.config.form
        assert isinstance(tokenizer, MegatronTokenizer)
        try:
            ids, targets = encoded(conversation, tokenizer, form)
            if not ids:
                raise BadRecord("has no token: roles are written in lower case")
        except ValueError as error:
            raise ValueError(f"--data-path: {self.rows.places[row]}: {error}; repair it or take it out") from error
        ends = [tokenizer.eod] if form.appends_eod and ids[-1] != tokenizer.eod else []
        return ids + ends, targets + ends

    def __getitem__(self, number: int) -> dict[str, Array]:
        """Sample `number` as training reads it: tokens, labels, loss_mask, position_ids and document_starts, each
        [s]."""
        sample = self.packed(number)
        labels = sample["labels"]
        counts = (labels != IGNORED) & (labels != self.config.tokenizer.pad)
        places = np.arange(len(labels), dtype=np.int32)
        return {
            "tokens": sample["tokens"],
            "labels": np.where(counts, labels, 0).astype(np.int32),
            "loss_mask": counts.astype(np.float32),
            "position_ids": sample["position_ids"],
            "document_starts": places - sample["position_ids"],
        }
