"""Stop words that end a generated text, and pieces of the text that are written as soon as they are certain."""

import pytest

from parallel_core.data.tokenizers import MegatronTokenizer
from parallel_core.data.tokenizers.base import Facts
from pynative.generation.texts import Decoded, Text


class Bytes(MegatronTokenizer):
    """A tokenizer whose tokens are the bytes of UTF-8."""

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
    """(final text, pieces written, text of the ids that are kept, number of tokens drawn) when a model's tokens are the
    bytes of `words`."""
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
    """The three tokens of a three-byte character are written as one piece."""
    assert said("ab€c", []) == ("ab€c", ["a", "b", "€", "c"], "ab€c", 6)


@pytest.mark.parametrize("stops", [["\nQ:"], ["never", "\nQ:", "Q: and"]])
def test_a_stop_word_is_neither_written_nor_kept(stops):
    """Drawing ends with the stop word's last token; no part of it is written as a piece or kept in text and ids."""
    whole, pieces, kept, drawn = said("yes\nno\nQ: and more", stops)
    assert whole == "".join(pieces) == kept == "yes\nno" and drawn == len("yes\nno\nQ:")


def test_the_beginning_of_a_stop_word_alone_is_text():
    """A text that ends with the beginning of a stop word keeps it, and writes it with the last piece."""
    assert said("a\nQ", ["\nQ:"])[:3] == ("a\nQ", ["a", "\nQ"], "a\nQ")
