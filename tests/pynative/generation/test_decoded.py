"""Words that end a text, and pieces of it that are written as they become certain."""

import pytest

from parallel_core.data.tokenizers import MegatronTokenizer
from parallel_core.data.tokenizers.base import Facts
from pynative.generation.texts import Decoded, Text


class Bytes(MegatronTokenizer):
    """A token is a byte of UTF-8."""

    def __init__(self) -> None:
        super().__init__(Facts(256))

    def tokenize(self, text):
        return list(text.encode())

    def detokenize(self, token_ids):
        return bytes(token_ids).decode(errors="replace")

    @property
    def vocab(self):
        return {}


def said(words: str, stops: list[str]) -> tuple[str, list[str], str, int]:
    """(the words, the pieces that were written, what the ids that stay are, how many were drawn)."""
    tokenizer, pieces, text = Bytes(), [], Text([1])
    decoded = Decoded(tokenizer, stops, pieces.append)
    for token in words.encode():
        text.new.append(token)
        text.logprobs.append(-1.0)
        if decoded.is_over(text):
            break
    drawn = len(text.new)
    whole = decoded.finish(text)
    assert len(text.new) == len(text.logprobs)
    return whole, pieces, tokenizer.detokenize(text.new), drawn


def test_pieces_are_whole_characters():
    """The three bytes of one come as one piece."""
    assert said("ab€c", []) == ("ab€c", ["a", "b", "€", "c"], "ab€c", 6)


@pytest.mark.parametrize("stops", [["\nQ:"], ["never", "\nQ:", "Q: and"]])
def test_a_stop_word_is_neither_written_nor_kept(stops):
    """Its beginning is not written either; the text ends with it at once."""
    whole, pieces, kept, drawn = said("yes\nno\nQ: and more", stops)
    assert whole == "".join(pieces) == kept == "yes\nno" and drawn == len("yes\nno\nQ:")


def test_the_beginning_of_a_stop_word_alone_is_text():
    assert said("a\nQ", ["\nQ:"])[:3] == ("a\nQ", ["a", "\nQ"], "a\nQ")
