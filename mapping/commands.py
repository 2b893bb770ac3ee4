"""The commands of the one entry point, as data."""

from __future__ import annotations

from typing import NamedTuple


class Command(NamedTuple):
    """A command: the module that is run, which a command alone imports, a sentence, and an example of its arguments."""

    module: str
    does: str
    example: str


COMMANDS = {
    "launch": Command("mapping.launch", "run a Megatron launch script as it is, with msrun", "pretrain_llama.sh 7B"),
    "explain": Command(
        "mapping.explain",
        "say how each flag is handled, and whether the run starts",
        "--world-size 8 -- --num-layers 32",
    ),
    "plan": Command(
        "mapping.plan",
        "predict memory, step time and the best layout of a run",
        "--world-size 64 --device A100 -- --num-layers 32",
    ),
    "preprocess": Command(
        "parallel_core.data.preprocess",
        "turn text or conversations into .bin/.idx files",
        "--input text.jsonl --output-prefix data/text --tokenizer-type HuggingFaceTokenizer --tokenizer-model MODEL",
    ),
    "tokenize": Command(
        "parallel_core.data.tokenizers.tokenize",
        "print the ids of texts, and facts about a vocabulary",
        "--tokenizer-type HuggingFaceTokenizer --tokenizer-model MODEL text.jsonl",
    ),
    "convert": Command(
        "parallel_core.checkpoint.convert",
        "convert a checkpoint from or to HuggingFace and Megatron-LM",
        "--input MODEL --output native",
    ),
    "inspect": Command("mapping.inspect", "show the contents of a checkpoint or of a data set", "output"),
    "generate": Command("pynative.generation", "generate text from a checkpoint", "--load output --prompt 'def '"),
    "evaluate": Command(
        "pynative.generation.evaluate",
        "measure loss and exact matches on a held-out file",
        "--load output --task-data-path held.jsonl",
    ),
    "completion": Command("mapping.completion", "print a completion script for bash or zsh", "bash"),
}
