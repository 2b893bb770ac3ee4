"""Texts from a trained model: by a key/value cache, on any layout without context parallelism."""

from pynative.generation.host_products import Products
from pynative.generation.texts import Asked, Text, generate, generate_texts

__all__ = ["Asked", "Products", "Text", "generate", "generate_texts"]
