"""The model: layers, the language model of a stage, GPT."""

from pynative.transformer.language_model import ParallelLMLogits, get_language_model
from pynative.transformer.module import Module
