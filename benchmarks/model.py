"""The GPT that benchmarks train: its sizes on the command line, and the same as Megatron's flags."""

import argparse
import sys
from typing import Any

from parallel_core.system.command_line import command_line


def parser_of(description: str | None, **defaults: int) -> argparse.ArgumentParser:
    """A parser with an option for a whole number for each name in `defaults`."""
    parser = command_line(description)
    for name, default in defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default, help=name.replace("_", " "))
    return parser


def split_at_dashes(argv: list[str] | None = None) -> tuple[list[str], list[str]]:
    """(words of the command line before `--`, words behind it, which are Megatron's flags)."""
    argv = sys.argv[1:] if argv is None else argv
    at = argv.index("--") if "--" in argv else len(argv)
    return argv[:at], argv[at + 1 :]


def model_flags(options: argparse.Namespace, **others: Any) -> list[str]:
    """Megatron's flags for the model of these options, without dropout; `others` are added, or replace flags of the
    same name."""
    flags = {
        "num_layers": options.layers, "hidden_size": options.hidden, "num_attention_heads": options.heads,
        "seq_length": options.seq, "max_position_embeddings": options.seq, "micro_batch_size": options.mbs,
        "global_batch_size": options.mbs, "padded_vocab_size": options.vocab, "vocab_size": options.vocab,
        "tokenizer_type": "NullTokenizer", "lr": 1e-4, "hidden_dropout": 0.0, "attention_dropout": 0.0,
    }  # fmt: skip
    return [text for name, value in (flags | others).items() for text in (f"--{name.replace('_', '-')}", str(value))]
