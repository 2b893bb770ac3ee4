"""`python -m mapping evaluate`: the model's loss on the answers in a file, and the share of answers that it generates
exactly."""

import logging
import os
from argparse import Namespace
from pathlib import Path

os.environ.setdefault("GLOG_v", "3")  # MindSpore's own log: errors only

from parallel_core.data.from_config import tokenizer_of
from parallel_core.data.instruction.chat import Chat
from parallel_core.data.instruction.templates import OWN_TEMPLATE, TABLE, load_template
from parallel_core.data.questions import FLAG, Writer, read_questions
from parallel_core.data.tokenizers import MegatronTokenizer
from parallel_core.findings import ConfigError, Finding
from parallel_core.system.command_line import command_line, ends_quietly, program
from pynative.generation.options import add_model_flags, configured, ends_of

DESCRIPTION = """The mean loss of the tokens of given answers, and the share of answers that are what the model says
greedily.

    python -m mapping evaluate --load output --task-data-path held.jsonl
    python -m mapping evaluate --load output --task-data-path held.jsonl --prompt-type qwen --json

Each line has {"prompt", "answer"}, or Alpaca's {"instruction", "input", "output"}. Model, tokenizer and ranks are as
for `generate`."""


def parse(argv: list[str] | None, called: str | None = None) -> Namespace:
    """The options of the command line. argv: its words; None: those of this process. called: the program's name in its
    help; None: that of `evaluate`."""
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


def evaluate(options: Namespace) -> None:
    """Print the mean loss of the given answers and the share that the model generates exactly. Raises ValueError for
    wrong options, files and folders, most of them before MindSpore is imported, and OSError for a file that cannot be
    opened."""
    if options.batch_size < 1:
        raise ConfigError([Finding("--batch-size", options.batch_size, "must be at least 1", "change it")])
    file = options.task_data_path
    questions = read_questions(file)
    config = configured(options)
    tokenizer = tokenizer_of(config)
    chat, sizes = _chat(options, tokenizer), config.model_config
    tasks = Writer(tokenizer, chat).tasks(file, questions, sizes.seq_length, sizes.unpadded_vocab_size)
    ends = ends_of(config, tokenizer, options.load) | (chat.ends if chat else frozenset())

    # Importing MindSpore takes seconds; wrong options have been reported before.
    from pynative.generation.command import loaded
    from pynative.generation.judge import Judge, show

    judge = Judge(loaded(options.load, config), tokenizer, ends)
    show(judge.judged(tasks, options.batch_size), options.json)


def _chat(options: Namespace, tokenizer: MegatronTokenizer) -> Chat | None:
    """The chat template of questions; None for plain texts. Raises ValueError for an unknown template."""
    if options.chat or options.prompt_type == OWN_TEMPLATE:
        return Chat(None, tokenizer)
    template = options.prompt_type
    return None if template is None else Chat(load_template(template, options.prompt_type_path), tokenizer)


def main(argv: list[str] | None = None, called: str | None = None) -> None:
    """Run the command `evaluate`; on a wrong option or a file that cannot be read exit with the error on stderr and
    code 1, or 2 where the parser finds it."""
    logging.getLogger("pynative").addHandler(logging.StreamHandler())  # standard output is for the result only
    options = parse(argv, called)
    try:
        with ends_quietly():
            evaluate(options)
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
