"""The settings of the handlers (--handler-name) that turn rows of data into tokens, and the form of their results."""

from dataclasses import dataclass

from parallel_core.data.instruction.encoding import ConversationEncoder
from parallel_core.data.instruction.tokens import ConversationTokens

Sequences = dict[str, list[list[int]]]
"""Name of a data set -> the sequences of one document in it."""


@dataclass(frozen=True)
class Setting:
    """The settings of the handlers (--handler-name). tokens: the tokenizer with a template's tokens; encoder: writes
    conversations; room: --seq-length in tokens, None if it is not given; neat_room: with --neat-pack the most tokens of
    a turn; additional_keys: --dataset-additional-keys; the others: the flags of their names."""

    tokens: ConversationTokens
    encoder: ConversationEncoder
    json_keys: tuple[str, ...] = ("text",)
    append_eod: bool = False
    pad_to_multiple_of: int = 1
    neat_room: int | None = None
    """With --neat-pack the number of tokens that a turn may have; else None."""
    additional_keys: tuple[str, ...] = ()
    room: int | None = None
    """--seq-length, in tokens; None: not given."""

    @property
    def eod(self) -> int:
        """The id that --append-eod puts behind a sample. Raises ValueError if the tokenizer has none."""
        if self.tokens.end is None:
            raise ValueError("--append-eod: the tokenizer has no token that ends a text; leave it out, or give another")
        return self.tokens.eos


def labelled(ids: list[int], labels: list[int]) -> Sequences:
    """The sequences of one conversation in the data sets input_ids, attention_mask (all ones) and labels."""
    return {"input_ids": [ids], "attention_mask": [[1] * len(ids)], "labels": [labels]}
