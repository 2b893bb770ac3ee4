"""Options of the data: files, tokenizer, batch sizes, conversations."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from parallel_core.config.base import Config, option
from parallel_core.findings import Finding


@dataclass(kw_only=True)
class InstructionConfig(Config):
    """Options that turn prompts and answers into samples."""

    enabled: bool = option("--is-instruction-dataset", False)
    """Samples are prompts with answers; only answers carry loss."""
    labels_in_data: bool = option("--train-mode", False)
    """Data files hold, after each sequence's tokens, as many labels."""
    sft: bool = option("--sft", False)
    """Read files of messages, tokenised while training, as Megatron does."""
    raw: str | None = option("--dataset", None, choices=("LLama-Pretrain-Raw", "LLama-SFT-Raw"))
    """Read files of questions with answers, tokenised when training begins, as Pai-Megatron-Patch does: as one text, or
    by the tokenizer's chat template."""
    max_padding_length: int | None = option("--max-padding-length", None, at_least=1)
    """The most tokens of a sample of --dataset, behind which it is padded to --seq-length; that if not given."""
    prompt_type: str | None = option("--prompt-type", None)
    """Name of the chat template that the data were made with."""
    prompt_type_path: str | None = option("--prompt-type-path", None)
    """JSON file of chat templates."""
    pack: bool = option("--pack", False)
    """Fill each sample with several conversations."""
    neat_pack: bool = option("--neat-pack", False)
    """Read, with --reset-attention-mask, from the data's attention mask which packed conversation a token is of,
    instead of looking for ends of text."""
    pad_to_seq_length: bool = option("--no-pad-to-seq-lengths", True)
    """Pad every sample to the full length."""
    pad_to_multiple_of: int = option("--pad-to-multiple-of", 8, at_least=1)
    """Pad samples to the next multiple of this, and of the parts that context and sequence parallelism cut them into,
    where they are not padded to the full length."""
    padding_side: str = option("--tokenizer-padding-side", "right", choices=("left", "right"))
    """Side of a sample on which padding stands."""
    padded_samples: bool = option("--padded-samples", False)
    """Repeat samples until the data set is a whole number of global batches."""
    cut_max_seqlen: bool = option("--cut-max-seqlen", False)
    """Cut a conversation that is too long at its end, instead of question and answer of each turn by their shares."""
    shuffle: bool = option("--no-shuffle", True)
    """Read conversations in random order."""
    full_shuffle: bool = option("--full-shuffle-instruction-dataset", False)
    """Shuffle all passes over the data together."""
    fix_sub_seq_length: int = option("--fix-sub-seq-length", -1, at_least=-1)
    """Number of tokens of each piece of a packed sample, of which none attends to another with --reset-attention-mask;
    -1: each conversation is a piece."""
    enable_thinking: bool | None = option("--enable-thinking", None)
    """Fill the template's place for reasoning; if not given, the data decide."""


@dataclass(kw_only=True)
class TokenizerConfig(Config):
    """Options of the tokenizer, and the tokens that are added to it."""

    legacy_tokenizer: bool = option("--legacy-tokenizer", False)
    """Megatron's older tokenizers: HuggingFace's and Llama2's begin texts with BOS, and special tokens show in text."""
    vocab_extra_ids: int = option("--vocab-extra-ids", 0, at_least=0)
    """Number of tokens <extra_id_N> behind the vocabulary."""
    tokenizer_special_tokens: list[str] | None = option("--tokenizer-special-tokens", None)
    """Tokens that are added to the vocabulary; of a TikTokenizer, the tokens with the first ids."""
    tokenizer_hf_include_special_tokens: bool | None = option("--tokenizer-hf-include-special-tokens", None)
    """Put BOS and EOS around each text as the HuggingFace folder says; none: as the kind of tokenizer does."""
    trust_remote_code: bool = option("--trust-remote-code", False)
    """Run the Python code in a HuggingFace folder whose tokenizer nothing else can read."""
    tiktoken_pattern: str | None = option("--tiktoken-pattern", None, choices=("v1", "v2"))
    """The pattern that cuts text into words; v2 cuts also where the case of letters changes."""
    tiktoken_num_special_tokens: int = option("--tiktoken-num-special-tokens", 1000, at_least=3)
    """Number of ids in front of the vocabulary, for special tokens and placeholders."""
    tokenizer_sentencepiece_legacy: bool = option("--tokenizer-sentencepiece-legacy", False)
    """Look for the added special tokens in text."""
    tokenizer_sentencepiece_ignore_extra_whitespaces: bool = option(
        "--no-tokenizer-sentencepiece-ignore-extra-whitespaces", True
    )
    """Drop the blanks that the SentencePiece model drops."""
    null_tokenizer_eod_id: int | None = option("--null-tokenizer-eod-id", None, at_least=0)
    """Id that ends a document; none: one more than the data's ids."""
    null_tokenizer_pad_id: int = option("--null-tokenizer-pad-id", -1, at_least=-1)
    """Id that fills up samples; -1: none."""
    sft_tokenizer_prompt_format: str = option(
        "--sft-tokenizer-prompt-format",
        "nemotron-h-aligned",
        choices=("nemotron-h-aligned", "nemotron-nano-v2", "identity", "default"),
    )
    """Form in which conversations are written, and the token that fills up samples."""


@dataclass(kw_only=True)
class DatasetConfig(Config):
    """Options of data files, tokenizer, batches and masks."""

    batch_size: int = option("--micro-batch-size", 1, at_least=1)
    """Number of samples of one micro-batch on one data-parallel rank."""
    global_batch_size: int = option("--global-batch-size", None, at_least=1)
    """Number of samples of one optimizer step; if not given, --micro-batch-num micro-batches on each data-parallel
    rank, or the fewest that the pipeline's schedule takes."""
    micro_batch_num: int = option("--micro-batch-num", None, at_least=1)
    """Number of micro-batches of one optimizer step on each data-parallel rank."""
    eval_global_batch_size: int | None = option("--eval-global-batch-size", None, at_least=1)
    """Number of samples of one of the `eval_iters` batches of an evaluation; none: `global_batch_size`."""
    rampup_batch_size: list[int] | None = option("--rampup-batch-size", None)
    """First global batch size, its increment, and the number of samples over which it grows to `global_batch_size`."""
    step_batch_size_schedule: list[list[int]] | None = option("--step-batch-size-schedule", None)
    """Pairs of a number of tokens and the global batch size from there on; the last size is `global_batch_size`."""

    data_path: list[str] | None = option("--data-path", None)
    """Prefixes of indexed datasets, or weight and prefix in turn, split by `split`."""
    split: str | None = option("--split", None)
    """Shares of training, validation and test documents, such as 969,30,1."""
    train_data_path: list[str] | None = option("--train-data-path", None)
    """Prefixes of the training data alone."""
    max_train_samples: int | None = option("--max_train_samples", None, at_least=1)
    """Train on this many of the first samples, over and over."""
    valid_data_path: list[str] | None = option("--valid-data-path", None)
    """Prefixes of the validation data alone."""
    test_data_path: list[str] | None = option("--test-data-path", None)
    """Prefixes of the test data alone."""
    data_cache_path: str | None = option("--data-cache-path", None)
    """Folder of the indices of shuffled samples."""
    mock_data: bool = option("--mock-data", False)
    """Train on made-up tokens: 1, 2, 3, ... in documents of random lengths."""
    mmap_bin_files: bool = option("--no-mmap-bin-files", True)
    """Map data files into memory instead of reading them."""
    num_workers: int = option("--num-workers", 2, at_least=0)
    """0: read a step's data when they are needed; more: read the next step's data while a step is computed."""
    dataloader_type: str | None = option("--dataloader-type", None, choices=("single", "cyclic"))
    """single: one pass in order, as if not given; cyclic: shuffled passes without end."""
    data_sharding: bool = option("--no-data-sharding", True)
    """Give, with the cyclic loader, each data-parallel rank a fixed part of the samples, instead of dealing all samples
    to all ranks."""
    drop_remainder: bool = option("--no-drop-remainder", True)
    """Leave out the last batch of the data if it is not full. Switched off, it is filled up with rows that don't count,
    and every step is averaged by its tokens."""

    tokenizer_type: str | None = option("--tokenizer-type", None)
    """Kind of tokenizer, which says what --vocab-file, --merge-file and --tokenizer-model are."""
    vocab_file: str | None = option("--vocab-file", None)
    """Vocabulary file of a byte-pair or word-piece tokenizer."""
    merge_file: str | None = option("--merge-file", None)
    """File of a byte-pair tokenizer's merges."""
    tokenizer_model: str | None = option("--tokenizer-model", None)
    """The tokenizer's model file or directory."""
    tokenizer_kwargs: list[str] | None = option("--tokenizer-kwargs", None)
    """Settings that replace those of the folder's tokenizer_config.json: names and values in turn."""
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    """Options of the tokenizer, and the tokens that are added to it."""
    pad_token_id: int | None = option("--pad-token-id", None, at_least=0)
    """Id that fills up samples, instead of the tokenizer's; its positions carry no loss."""
    eos_token_id: int | None = option("--eos-token-id", None, at_least=0)
    """Id that ends a document, instead of the tokenizer's."""

    reset_position_ids: bool = option("--reset-position-ids", False)
    """Count positions from each document's start."""
    reset_attention_mask: bool = option("--reset-attention-mask", False)
    """Keep tokens from attending to earlier documents."""
    eod_mask_loss: bool = option("--eod-mask-loss", False)
    """Leave the ends of documents out of the loss."""
    create_attention_mask_in_dataloader: bool = option("--no-create-attention-mask-in-dataloader", True)
    """Let the loader say where documents begin. Switched off, attention is causal through a whole sample."""
    instruction: InstructionConfig = field(default_factory=InstructionConfig)
    """Options of fine-tuning on conversations."""

    def rules(self) -> Iterator[Finding]:
        if not self.drop_remainder and self.dataloader_type == "cyclic":
            rule = "steps of --dataloader-type cyclic go on from one pass to the next, so that none is smaller"
            yield Finding("--no-drop-remainder", None, rule, "leave one of them out")
