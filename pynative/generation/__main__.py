"""`python -m mapping generate`, which is `python -m pynative.generation`: texts from a checkpoint."""

import logging
import os

os.environ.setdefault("GLOG_v", "3")  # MindSpore's own log: errors only

from parallel_core.data.from_config import tokenizer_of
from parallel_core.system.command_line import ends_quietly
from pynative.generation.options import asked_of, configured, ends_of, parse, prompts_of, template_of


def run(argv: list[str] | None, program: str | None = None) -> None:
    """Print the continuations of the prompts that the command line gives, that of --prompt behind the prompt itself
    unless --chat or --json is given; with --chat and no prompt hold a chat. program: the command's name in its help;
    None: that of `generate`. Raises ValueError for wrong options, most of them before MindSpore is imported, and
    OSError for a file that cannot be read; for some options the parser exits with 2."""
    options = parse(argv, program)
    prompts, asked = prompts_of(options), asked_of(options, frozenset())
    config = configured(options)
    tokenizer = tokenizer_of(config)
    template = template_of(options, tokenizer)
    tokens = [prompt.tokens(tokenizer, template) for prompt in prompts]
    asked = asked_of(options, ends_of(config, tokenizer, options.load) | (template.ends if template else frozenset()))

    # Importing MindSpore takes seconds; wrong options have been reported before.
    from pynative.generation.command import loaded
    from pynative.generation.session import Session

    session = Session(loaded(options.load, config), tokenizer, asked, options.stop, template)
    if not prompts:
        session.chat()
    elif options.prompt is not None and not options.json:
        session.write("" if options.chat else options.prompt)
        session.stream(prompts[0])
    else:
        session.write_batches(tokens, options.batch_size, options.json)


def main(argv: list[str] | None = None, program: str | None = None) -> None:
    """Run the command `generate`; on a wrong option or a file that cannot be read exit with the error on stderr and
    code 1, or 2 where the parser finds it."""
    logging.getLogger("pynative").addHandler(logging.StreamHandler())  # standard output is for the texts only
    try:
        with ends_quietly():
            run(argv, program)
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
