"""Texts as people read them while they grow: words that end them, and what can be printed already."""

from collections.abc import Callable, Sequence

from parallel_core.data.tokenizers import MegatronTokenizer
from pynative.generation.texts import Text

INCOMPLETE = "\ufffd"
"""The character that a tokenizer writes for the first bytes of a character whose others are to come."""


class Decoded:
    """Of texts under way the words behind their prompts.

    Args:
        stops: words that end a text; they and what follows are left out.
        write: is given each piece of a text once that it is certain.
    """

    def __init__(
        self, tokenizer: MegatronTokenizer, stops: Sequence[str] = (), write: Callable[[str], None] | None = None
    ) -> None:
        self.tokenizer, self.stops, self._write = tokenizer, stops, write
        self._written = 0

    def is_over(self, text: Text) -> bool:
        """Whether one of the words came, of a text that got a token; what is certain is written."""
        if not self.stops and self._write is None:
            return False
        words = self.tokenizer.detokenize(text.new)
        end = self._end(words)
        if self._write is not None:
            self._write_until(words, self._certain(words) if end is None else end)
        return end is not None

    def finish(self, text: Text) -> str:
        """The words of a text that is complete; of the ids those stay that they come from."""
        words = self.tokenizer.detokenize(text.new)
        end = self._end(words)
        if end is not None:
            while text.new and len(self.tokenizer.detokenize(text.new[:-1])) >= end:
                del text.new[-1], text.logprobs[-1]
            words = words[:end]
        if self._write is not None:
            self._write_until(words, len(words))
            self._written = 0
        return words

    def _end(self, words: str) -> int | None:
        """Where the first of the stop words begins."""
        return min((place for stop in self.stops if (place := words.find(stop)) >= 0), default=None)

    def _certain(self, words: str) -> int:
        """How much of the words no later token changes, and can be no beginning of a stop word."""
        words = words.rstrip(INCOMPLETE)
        held = (n for stop in self.stops for n in range(len(stop) - 1, 0, -1) if words.endswith(stop[:n]))
        return len(words) - max(held, default=0)

    def _write_until(self, words: str, end: int) -> None:
        if self._write is not None and end > self._written:
            self._write(words[self._written : end])
            self._written = end
