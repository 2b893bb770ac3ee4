"""The commands of the one entry point, as data."""

from typing import NamedTuple


class Command(NamedTuple):
    """A command of the entry point: the module that is run as `__main__`, and what it does, in words for the usage."""

    module: str
    does: str


COMMANDS = {
    "launch": Command("mapping.launch", "run a Megatron launch script as it is, with msrun"),
    "explain": Command("mapping.explain", "say how each flag is handled, and whether the run starts"),
    "plan": Command("mapping.plan", "predict memory, step time and the best layout of a run"),
    "report": Command("mapping.report", "put what runs have left into one HTML page, or watch them in it"),
    "compare": Command("mapping.compare", "say where two runs differ first, and in what they were set up otherwise"),
    "preprocess": Command("parallel_core.data.preprocess", "turn text or conversations into .bin/.idx files"),
    "tokenize": Command("parallel_core.data.tokenizers.tokenize", "print ids of texts and facts about a vocabulary"),
    "convert": Command(
        "parallel_core.checkpoint.convert", "convert checkpoints from or to HuggingFace and Megatron-LM"
    ),
    "inspect": Command("mapping.inspect", "show the contents of a checkpoint or of a data set"),
    "generate": Command("pynative.generation", "generate text from a checkpoint"),
    "evaluate": Command("pynative.generation.evaluate", "measure loss and exact matches on a held-out file"),
    "completion": Command("mapping.completion", "print a completion script for bash or zsh"),
}
