"""Texts from a trained model: by a key/value cache, on any layout without context parallelism."""

from pynative.generation.texts import Asked, Text, generate, generate_texts

__all__ = ["Asked", "Text", "generate", "generate_texts"]
