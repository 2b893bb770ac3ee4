"""The output of the command `generate`: continuations of prompts, streamed, in batches, or in a chat."""

import json
import sys
from collections.abc import Sequence

from mindspore import nn

from parallel_core.data.instruction.chat import Chat
from parallel_core.data.prompts import Prompt
from parallel_core.data.tokenizers import MegatronTokenizer
from parallel_core.sampling import Asked
from pynative import parallel_state
from pynative.generation.texts import Decoded, Text, generate_texts


class Session:
    """A model with its tokenizer and chat template, the way in which texts are continued, and words that end one."""

    def __init__(
        self,
        model: nn.Cell,
        tokenizer: MegatronTokenizer,
        asked: Asked,
        stops: Sequence[str],
        template: Chat | None = None,
    ) -> None:
        """template: writes messages of a chat; None: the tokenizer's own."""
        self.model, self.tokenizer, self.asked, self.stops, self.template = model, tokenizer, asked, stops, template
        self.prints = parallel_state.get_global_rank() == 0

    def write(self, words: str) -> None:
        """Write to standard output, on rank 0 alone."""
        if self.prints:
            print(words, end="", flush=True)

    def stream(self, prompt: Prompt) -> str:
        """Write a prompt's continuation while it is generated, and behind it a line feed, on rank 0 alone; return the
        words of the continuation. A stop word ends it and is left out."""
        decoded = Decoded(self.tokenizer, self.stops, self.write)
        tokens = prompt.tokens(self.tokenizer, self.template)
        (text,) = generate_texts(self.model, [tokens], self.asked, decoded.is_over)
        words = decoded.finish(text)
        self.write("\n")
        return words

    def continued(self, prompts: Sequence[Sequence[int]]) -> list[tuple[Text, str]]:
        """For each prompt (token ids) of a batch, of at least one: the `Text` with its continuation, and the words of
        the continuation. A stop word ends it and is left out of the words."""
        decoded = Decoded(self.tokenizer, self.stops)
        texts = generate_texts(self.model, prompts, self.asked, decoded.is_over)
        return [(text, decoded.finish(text)) for text in texts]

    def chat(self) -> None:
        """Answer lines from standard input, each in the context of the earlier ones and their answers, until the input
        ends; blank lines are passed over."""
        messages: list[dict[str, str]] = []
        while True:
            self.write("> ")
            said = sys.stdin.readline()
            if not said:
                return self.write("\n")
            if said.strip():
                messages.append({"role": "user", "content": said.strip()})
                answer = self.stream(Prompt(messages=tuple(messages)))
                messages.append({"role": "assistant", "content": answer})

    def write_batches(self, prompts: Sequence[Sequence[int]], size: int, as_json: bool) -> None:
        """Write each prompt's continuation and a line feed, on rank 0 alone: its words, which may be several lines, or
        if `as_json` a line of JSON with its ids, its words and the ids' log probabilities, rounded to 6 decimals. At
        most `size` prompts are computed at a time."""
        for start in range(0, len(prompts), size):
            for text, words in self.continued(prompts[start : start + size]):
                self.write(_line(text, words, as_json))


def _line(text: Text, words: str, as_json: bool) -> str:
    line = {"ids": text.new, "text": words, "logprobs": [round(number, 6) for number in text.logprobs]}
    return f"{json.dumps(line, ensure_ascii=False) if as_json else words}\n"
