"""Tokenizers by Megatron's names.

`facts` gives size and special ids, without a library (but for a HuggingFace folder that only its own code reads);
`build_tokenizer` gives a tokenizer that encodes and decodes.
"""

from parallel_core.data.tokenizers.base import Facts, MegatronTokenizer, TokenizerOptions
from parallel_core.data.tokenizers.huggingface_folder import has_tokenizer
from parallel_core.data.tokenizers.registry import (
    TOKENIZERS,
    TokenizerType,
    build_tokenizer,
    facts,
    findings,
    padded_vocab_size,
    training_vocab_size,
)
