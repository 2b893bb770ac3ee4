"""Flags that are ignored or refused: data and their preparation, tokenizers, evaluation."""

from mapping.flags.flag import group, ignored, refused

FLAGS = group(
    "Data: preparation of data, tokenizers, evaluation",
    ignored(
        "a tokenizer.json is read by the package tokenizers in any case; transformers' slow class gives the same ids",
        "--tokenizer-hf-no-use-fast --tokenizer-hf-use-fast --tokenizer-not-use-fast=off",
    ),
    ignored(
        "checkpoints name the tokenizer's files and hold no copies of them",
        "--no-save-tokenizer-assets|--disable-save-tokenizer-assets=off",
    ),
    ignored(
        "token files and indices are mapped into memory when they are opened; only the time of reading changes",
        "--dataloader-fast-cache-load --dataloader-defer-npy-index-mmap --mmap-warmup",
    ),
    refused(
        "a tokenizer is what its files and --tokenizer-type say; change these instead",
        "--tokenizer-metadata>metadata_path=str --use-gigatoken",
    ),
    refused(
        "every label that is the token of padding carries no loss; give the tokenizer a token for padding alone",
        "--allow-ambiguous-pad-tokens",
    ),
    refused(
        "an evaluation reads one data set, --eval-iters batches of --eval-global-batch-size; leave it out",
        "--full-validation --multiple-validation-sets --validation-set-names=str+",
    ),
    refused(
        "evaluations come every --eval-interval steps, from the first on; leave it out", "--start-eval-at-iter=int"
    ),
    refused(
        "an evaluation's micro-batches have --micro-batch-size samples; leave it out", "--eval-micro-batch-size=int"
    ),
    refused(
        "data sets are given by --data-path, or by --train-data-path, --valid-data-path and --test-data-path",
        """
        --data-args-path=str --per-split-data-args-path=str --per-dataset-sequences-path=str --sample-rate=float:1.0
        --renormalize-blend-weights --dataset-config=str
        """,
    ),
    refused(
        "a loader has no state to save: a resumed run goes on at its number of samples; leave it out",
        "--dataloader-save=str",
    ),
    refused(
        "masks and positions follow --reset-attention-mask and --reset-position-ids; use these",
        "--dataloader-inter-document-masking",
    ),
    refused(
        "documents are read as they lie, nothing moves their middle to the end (fill-in-the-middle); leave it out",
        """
        --fim-data --fim-rate=float:0.5 --fim-spm-rate=float:0.5 --fim-split-sample=str --fim-fragment-rate=float
        --fim-no-prefix=str --fim-prefix-token=str:<fim_prefix> --fim-middle-token=str:<fim_middle>
        --fim-suffix-token=str:<fim_suffix> --fim-pad-token=str:<fim_pad> --fim-eod-token=str:<|endoftext|>
        """,
    ),
    refused(
        "the vocabulary is padded as Megatron does by default; use --padded-vocab-size for an exact size",
        "--no-pad-vocab-size|--disable-pad-vocab-size=off",
    ),
    refused(
        "data are prepared before training (python -m mapping preprocess), as Megatron's token files; use --data-path",
        """
        --data-impl=str{lazy,cached,mmap,infer}:infer --streaming --hf-datasets-params=str --datasets=str+
        --json-keys=str+:['text'] --split-sentences --keep-newlines --interleave-probs=str
        --mix-strategy=str{concat,interleave_under,interleave_over}:concat --dataset-dir=str --overwrite-cache
        --max-samples=int --cache-dir=str:~/tmp --map-keys=str --script-data-dir=str --append-eod
        --dataset-impl=str{lazy,cached,mmap}:mmap --merge-group-keys=str+ --add-eos-token=str+:[] --data-dir=str
        --train-data=str+ --valid-data=str+
        """,
    ),
    refused(
        "this flag belongs to Pai-Megatron-Patch; use Megatron's flag for the same, if there is one",
        "--dataloader-seq-length=int",
    ),
)
