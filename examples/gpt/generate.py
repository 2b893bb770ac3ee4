"""Continue a text with a model from a checkpoint.

    python examples/gpt/generate.py --load output --prompt "def " --max-new-tokens 100 --temperature 0.8

One process, whatever number of them trained the model. Model and tokenizer are the checkpoint's; a folder of
HuggingFace's or Megatron-LM's does as well, whose tokenizer is named by flags: without them the prompt is ids.
"""

import argparse
import logging
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from parallel_core.command_line import command_line

os.environ.setdefault("GLOG_v", "3")  # MindSpore's own log: errors only


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = command_line(__doc__)
    parser.add_argument("--load", type=Path, required=True, help="what --save was, or a HuggingFace folder")
    parser.add_argument("--prompt", required=True, help="the text to continue")
    parser.add_argument("--max-new-tokens", type=int, default=100, help="how many follow it at most")
    parser.add_argument("--temperature", type=float, default=0.0, help="0: always the likeliest token")
    parser.add_argument("--top-k", type=int, default=0, help="draw from the k likeliest tokens; 0: from all")
    parser.add_argument("--top-p", type=float, default=0.0, help="draw from the likeliest tokens of this probability")
    parser.add_argument("--seed", type=int, default=0, help="of the draws")
    parser.add_argument("--tokenizer-type", help="instead of the one that the checkpoint names")
    parser.add_argument("--vocab-file", help="the same of its vocabulary")
    parser.add_argument("--merge-file", help="the same of its merges")
    parser.add_argument("--device-target", choices=("CPU", "Ascend"), help="by default an Ascend if there is one")
    return parser.parse_args(argv)


def load(options: argparse.Namespace):
    """Model and tokenizer of a checkpoint, and the id that ends a text, if a tokenizer is named that has one."""
    from parallel_core.checkpoint.convert.reader import open_checkpoint
    from parallel_core.checkpoint.settings import config_for_inference
    from parallel_core.data.from_config import tokenizer_of
    from pynative.checkpointing import load_model
    from pynative.training.utils import set_parallel_context
    from pynative.transformer.gpt_model import GPTModel

    sections = open_checkpoint(options.load, optimizer=False).manifest.config
    given = {name: getattr(options, name) for name in ("tokenizer_type", "vocab_file", "merge_file")}
    named = {name: value for name, value in given.items() if value is not None}
    sections["dataset_config"] = {**sections.get("dataset_config", {}), **named}
    config = config_for_inference(sections, options.device_target)
    tokenizer = tokenizer_of(config)
    set_parallel_context(config.parallel_config)
    model = GPTModel(config.model_config)
    load_model(options.load, model)
    return model, tokenizer, tokenizer.eod if config.dataset_config.tokenizer_type else None


def main(argv: list[str] | None = None) -> None:
    """Print the prompt and what follows it."""
    logging.getLogger("pynative").addHandler(logging.StreamHandler())  # standard output has the text alone
    options = parse(argv)
    from pynative.generate import generate

    try:
        model, tokenizer, end = load(options)
        continuation = generate(
            model,
            tokenizer.tokenize(options.prompt),
            max_new_tokens=options.max_new_tokens,
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            seed=options.seed,
            end_of_document=end,
        )
    except ValueError as error:
        raise SystemExit(f"error: {error}") from None
    print(options.prompt + tokenizer.detokenize(continuation))


if __name__ == "__main__":
    main()
