"""Generation of texts with a trained model, on any layout without context parallelism and virtual stages."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parallel_core.sampling import Asked
    from pynative.generation.texts import Text, generate, generate_texts

__all__ = ["Asked", "Text", "generate", "generate_texts"]


def __getattr__(name: str) -> Any:
    """A name of `texts`, imported when it is asked for: `generate` judges its command line before MindSpore is
    imported."""
    if name not in __all__:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(import_module("pynative.generation.texts"), name)
