"""Megatron's tokenizer of conversations (`--sft`): a HuggingFace folder whose padding the prompt format names."""

from dataclasses import replace

from parallel_core.data.tokenizers import huggingface
from parallel_core.data.tokenizers.base import Facts, TokenizerOptions
from parallel_core.data.tokenizers.huggingface_folder import HuggingFaceFolder

FORMATS: dict[str, str | None] = {
    "nemotron-h-aligned": "<SPECIAL_233>",
    "nemotron-nano-v2": "<unk>",
    "identity": "<unk>",
    "default": None,
}
"""--sft-tokenizer-prompt-format -> the token of padding; None: the folder's own, or its end of a text."""


def facts(options: TokenizerOptions) -> Facts:
    """The folder's facts, with an id of padding by the prompt format: the id of its token (`FORMATS`) or, where the
    folder lacks that, of the unknown token; for a format without a token (`default`) the folder's own id of padding or,
    where it has none, the id that ends a text. Raises ValueError if the folder has neither the format's token nor an
    unknown one, or is missing or damaged, for a prompt format that does not exist, and for --tokenizer-kwargs that lack
    a value."""
    assert options.tokenizer_model is not None
    folder = HuggingFaceFolder(options.tokenizer_model, options.tokenizer_kwargs)
    found, name = folder.facts(), options.sft_tokenizer_prompt_format
    if name not in FORMATS:
        raise ValueError(f"--sft-tokenizer-prompt-format {name}: must be one of {', '.join(FORMATS)}; change it")
    token = FORMATS[name]
    if token is None:
        return replace(found, pad=found.eos if found.pad is None else found.pad)
    pad = folder.vocab.get(token, found.unk)
    if pad is None:
        raise ValueError(
            f"--sft-tokenizer-prompt-format {name}: fills up samples with {token}, which {folder.file} lacks; use "
            "default, the folder's own chat template"
        )
    return replace(found, pad=pad)


class SFTTokenizer(huggingface.HuggingFaceTokenizer):
    """A HuggingFace tokenizer as with --legacy-tokenizer, whose id of padding depends on
    --sft-tokenizer-prompt-format (`facts` of this module)."""

    def __init__(self, options: TokenizerOptions) -> None:
        super().__init__(replace(options, legacy_tokenizer=True))
        self.facts = facts(options)
