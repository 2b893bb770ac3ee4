"""Settings of handlers, and their results."""

from dataclasses import dataclass

from parallel_core.data.instruction.encoding import ConversationEncoder
from parallel_core.data.instruction.tokens import ConversationTokens

Sequences = dict[str, list[list[int]]]
"""Data set -> the sequences of one document."""


@dataclass(frozen=True)
class Setting:
    """Settings of encoding; sent to worker processes."""

    tokens: ConversationTokens
    encoder: ConversationEncoder
    json_keys: tuple[str, ...] = ("text",)
    append_eod: bool = False
    pad_to_multiple_of: int = 1
    neat_room: int | None = None
    """--neat-pack: tokens that a turn may have."""
    additional_keys: tuple[str, ...] = ()
    room: int | None = None
    """--seq-length."""

    @property
    def eod(self) -> int:
        """Id of the end of document behind each sample."""
        return self.tokens.eos


def labelled(ids: list[int], labels: list[int]) -> Sequences:
    """The three data sets of one conversation."""
    return {"input_ids": [ids], "attention_mask": [[1] * len(ids)], "labels": [labels]}
