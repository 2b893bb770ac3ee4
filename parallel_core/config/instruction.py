"""Fine-tuning on conversations instead of running text."""

from __future__ import annotations

from dataclasses import dataclass

from parallel_core.config.base import Config, option


@dataclass(kw_only=True)
class InstructionConfig(Config):
    """How prompts and answers become samples."""

    enabled: bool = option("--is-instruction-dataset", False)
    """Samples are prompts with answers; only answers carry loss."""
    labels_in_data: bool = option("--train-mode", False)
    """Data files hold, after each sequence's tokens, as many labels."""
    sft: bool = option("--sft", False)
    """Read files of messages, tokenised while training, as Megatron does."""
    prompt_type: str | None = option("--prompt-type", None)
    """Name of the chat template that the data were made with."""
    prompt_type_path: str | None = option("--prompt-type-path", None)
    """JSON file of chat templates."""
    pack: bool = option("--pack", False)
    """Fill each sample with several conversations."""
    neat_pack: bool = option("--neat-pack", False)
    """The data's attention mask counts packed conversations, by which they are kept from attending to each other."""
    pad_to_seq_length: bool = option("--no-pad-to-seq-lengths", True)
    """Pad every sample to the full length."""
    pad_to_multiple_of: int = option("--pad-to-multiple-of", 8, at_least=1)
    """Otherwise to the next multiple of this."""
    padding_side: str = option("--tokenizer-padding-side", "right", choices=("left", "right"))
    """Where the padding goes."""
    padded_samples: bool = option("--padded-samples", False)
    """Repeat samples until the data set is a whole number of batches."""
    cut_max_seqlen: bool = option("--cut-max-seqlen", False)
    """Cut conversations that are too long instead of leaving them out."""
    shuffle: bool = option("--no-shuffle", True)
    """Read conversations in random order."""
    full_shuffle: bool = option("--full-shuffle-instruction-dataset", False)
    """Shuffle all passes over the data together."""
    fix_sub_seq_length: int = option("--fix-sub-seq-length", -1, at_least=-1)
    """Cut packed samples into pieces of this length; -1: at the conversations' ends."""
    enable_thinking: bool | None = option("--enable-thinking", None)
    """Fill the template's place for reasoning; none: by the data."""
