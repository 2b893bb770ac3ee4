"""The model's cells: layers and their sublayers, a pipeline stage's language model, GPT."""

from pynative.transformer.language_model import ParallelLMLogits, get_language_model
from pynative.transformer.module import Module
