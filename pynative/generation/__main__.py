"""`python -m mapping generate`, which is `python -m pynative.generation`: texts from a checkpoint."""

import json
import logging
import os
import sys
from collections.abc import Sequence

os.environ.setdefault("GLOG_v", "3")  # MindSpore's own log: errors only

from mindspore import nn

from parallel_core.data.from_config import tokenizer_of
from parallel_core.data.instruction.chat import Chat
from parallel_core.data.prompts import Prompt
from parallel_core.data.tokenizers import MegatronTokenizer
from parallel_core.system.command_line import ends_quietly
from pynative import parallel_state
from pynative.generation.command import asked_of, configured, ends_of, loaded, parse, prompts_of, template_of
from pynative.generation.texts import Asked, Decoded, Text, generate_texts


class Session:
    """A model that continues prompts as a command line asks."""

    def __init__(
        self,
        model: nn.Cell,
        tokenizer: MegatronTokenizer,
        asked: Asked,
        stops: Sequence[str],
        template: Chat | None = None,
    ) -> None:
        """template: how messages are written; none: as the tokenizer's own."""
        self.model, self.tokenizer, self.asked, self.stops, self.template = model, tokenizer, asked, stops, template
        self.prints = parallel_state.get_global_rank() == 0

    def write(self, words: str) -> None:
        """Write to standard output, by the first rank alone."""
        if self.prints:
            print(words, end="", flush=True)

    def stream(self, prompt: Prompt) -> str:
        """Write what follows a prompt as it comes, and return it."""
        decoded = Decoded(self.tokenizer, self.stops, self.write)
        tokens = prompt.tokens(self.tokenizer, self.template)
        (text,) = generate_texts(self.model, [tokens], self.asked, decoded.is_over)
        words = decoded.finish(text)
        self.write("\n")
        return words

    def continued(self, prompts: Sequence[Sequence[int]]) -> list[tuple[Text, str]]:
        """The continuation of each prompt of a batch, and its words."""
        decoded = Decoded(self.tokenizer, self.stops)
        texts = generate_texts(self.model, prompts, self.asked, decoded.is_over)
        return [(text, decoded.finish(text)) for text in texts]

    def chat(self) -> None:
        """Answer a person line by line, until the input ends."""
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


def _line(text: Text, words: str, as_json: bool) -> str:
    line = {"ids": text.new, "text": words, "logprobs": [round(number, 6) for number in text.logprobs]}
    return f"{json.dumps(line, ensure_ascii=False) if as_json else words}\n"


def run(argv: list[str] | None, program: str | None = None) -> None:
    """Print what follows the prompts. Raises ValueError for what was asked wrong, most of it before a device starts."""
    options = parse(argv, program)
    prompts, asked = prompts_of(options), asked_of(options, frozenset())
    config = configured(options)
    tokenizer = tokenizer_of(config)
    template = template_of(options, tokenizer)
    tokens = [prompt.tokens(tokenizer, template) for prompt in prompts]
    asked = asked_of(options, ends_of(config, tokenizer, options.load) | (template.ends if template else frozenset()))
    session = Session(loaded(options.load, config), tokenizer, asked, options.stop, template)
    if not prompts:
        return session.chat()
    if options.prompt is not None and not options.json:
        session.write("" if options.chat else options.prompt)
        session.stream(prompts[0])
        return None
    for start in range(0, len(tokens), options.batch_size):
        for text, words in session.continued(tokens[start : start + options.batch_size]):
            session.write(_line(text, words, options.json))
    return None


def main(argv: list[str] | None = None, program: str | None = None) -> None:
    """The command: exit code 1 with what was wrong in a line."""
    logging.getLogger("pynative").addHandler(logging.StreamHandler())  # standard output has the texts alone
    try:
        with ends_quietly():
            run(argv, program)
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
