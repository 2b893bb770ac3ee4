"""`python -m mapping evaluate`: the model's loss on the answers in a file, and the share of answers that it generates
exactly."""

import json
import logging
import os
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("GLOG_v", "3")  # MindSpore's own log: errors only

from mindspore import nn

from parallel_core.data.from_config import tokenizer_of
from parallel_core.data.instruction.chat import Chat
from parallel_core.data.instruction.templates import OWN_TEMPLATE, TABLE, load_template
from parallel_core.data.questions import FLAG, Task, Writer, read_questions
from parallel_core.data.tokenizers import MegatronTokenizer
from parallel_core.findings import ConfigError, Finding
from parallel_core.sampling import Asked
from parallel_core.system.command_line import command_line, ends_quietly, program
from pynative import parallel_state
from pynative.generation.command import loaded
from pynative.generation.options import add_model_flags, configured, ends_of
from pynative.generation.scores import answer_logprobs
from pynative.generation.texts import Text, generate_texts

DESCRIPTION = """The mean loss of the tokens of given answers, and the share of answers that are what the model says
greedily.

    python -m mapping evaluate --load output --task-data-path held.jsonl
    python -m mapping evaluate --load output --task-data-path held.jsonl --prompt-type qwen --json

Each line has {"prompt", "answer"}, or Alpaca's {"instruction", "input", "output"}. Model, tokenizer and ranks are as
for `generate`."""


@dataclass(frozen=True)
class Given:
    """A model's result on one question of the file: the answer's loss, and what it generated. `line` is the question's,
    from 1."""

    line: int
    loss: float
    """Mean over the answer's tokens, natural logarithm."""
    tokens: int
    is_exact: bool
    text: str
    """The greedy continuation: until its end, or one token beyond the longest answer of the batch."""


def parse(argv: list[str] | None, called: str | None = None) -> Namespace:
    """The options of the command line; called: the program's name in its help."""
    parser = command_line(DESCRIPTION, called or program("evaluate"))
    parser.add_argument("--load", type=Path, required=True, help="the checkpoint")
    parser.add_argument(FLAG, type=Path, required=True, help="the file of questions and answers")
    written = parser.add_mutually_exclusive_group()
    written.add_argument("--chat", action="store_true", help="questions by the tokenizer's chat template")
    written.add_argument("--prompt-type", help="questions by a template of fine-tuning, such as qwen")
    parser.add_argument("--prompt-type-path", type=Path, default=TABLE, help="JSON of templates of your own")
    parser.add_argument("--json", action="store_true", help="print one object, with what is said of each line")
    parser.add_argument("--batch-size", type=int, default=8, help="questions at a time")
    add_model_flags(parser)
    return parser.parse_args(argv)


class Judge:
    """A model whose answers to questions are compared with given ones.

    Args:
        ends: ids that end an answer; if there are none, as many generated tokens as the answer has are compared.
    """

    def __init__(self, model: nn.Cell, tokenizer: MegatronTokenizer, ends: frozenset[int]) -> None:
        self.model, self.tokenizer, self.ends = model, tokenizer, ends

    def judged(self, tasks: Sequence[Task]) -> list[Given]:
        """The results on a batch of tasks, in their order."""
        logprobs = answer_logprobs(self.model, tasks)
        longest = max(len(task.answer) for task in tasks)
        texts = generate_texts(self.model, [task.prompt for task in tasks], Asked(longest + 1, ends=self.ends))
        return [
            Given(task.line, -float(own.mean()), len(own), *self._compared(task, text))
            for task, own, text in zip(tasks, logprobs, texts, strict=True)
        ]

    def _compared(self, task: Task, text: Text) -> tuple[bool, str]:
        """(Whether the answer was generated, as ids or as words but for blanks around them; the generated words)."""
        end = next((place for place, token in enumerate(task.answer) if token in self.ends), len(task.answer))
        answer, said = task.answer[:end], text.new if self.ends else text.new[:end]
        words = self.tokenizer.detokenize(said)
        return said == answer or words.strip() == self.tokenizer.detokenize(answer).strip(), words


def summary(given: Sequence[Given]) -> dict[str, Any]:
    """Over all results: the mean loss of the answers' tokens, the share of exact matches, the numbers of answers and
    tokens."""
    tokens = sum(one.tokens for one in given)
    loss = sum(one.loss * one.tokens for one in given) / tokens
    return {
        "loss": loss,
        "exact_match": sum(one.is_exact for one in given) / len(given),
        "answers": len(given),
        "tokens": tokens,
    }


def evaluate(options: Namespace) -> list[Given]:
    """The results on all tasks of the file. Raises ValueError for wrong options, before a device starts."""
    if options.batch_size < 1:
        raise ConfigError([Finding("--batch-size", options.batch_size, "must be at least 1", "change it")])
    file = options.task_data_path
    questions = read_questions(file)
    config = configured(options)
    tokenizer = tokenizer_of(config)
    chat, sizes = _chat(options, tokenizer), config.model_config
    tasks = Writer(tokenizer, chat).tasks(file, questions, sizes.seq_length, sizes.unpadded_vocab_size)
    ends = ends_of(config, tokenizer, options.load) | (chat.ends if chat else frozenset())
    judge = Judge(loaded(options.load, config), tokenizer, ends)
    batches = (tasks[first : first + options.batch_size] for first in range(0, len(tasks), options.batch_size))
    return [one for batch in batches for one in judge.judged(batch)]


def _chat(options: Namespace, tokenizer: MegatronTokenizer) -> Chat | None:
    """The chat template of questions; None for plain texts. Raises ValueError for an unknown template."""
    if options.chat or options.prompt_type == OWN_TEMPLATE:
        return Chat(None, tokenizer)
    template = options.prompt_type
    return None if template is None else Chat(load_template(template, options.prompt_type_path), tokenizer)


def show(given: Sequence[Given], as_json: bool) -> None:
    """Print the summary; as_json: as one object, with the result of each line."""
    whole = summary(given)
    if as_json:
        print(json.dumps({**whole, "lines": [vars(one) for one in given]}, ensure_ascii=False))
        return
    print(f"loss {whole['loss']:.6f} over {whole['tokens']} tokens of {whole['answers']} answers")
    print(f"exact matches {whole['exact_match']:.2%}")


def main(argv: list[str] | None = None, called: str | None = None) -> None:
    """Run the command `evaluate`; on a wrong option or a file that cannot be read exit with code 1 and one line."""
    logging.getLogger("pynative").addHandler(logging.StreamHandler())  # standard output is for the result only
    options = parse(argv, called)
    try:
        with ends_quietly():
            given = evaluate(options)
            if parallel_state.get_global_rank() == 0:
                show(given, options.json)
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
