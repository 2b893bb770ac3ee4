"""`python benchmarks/megatron_preprocess.py FILE.jsonl PREFIX FOLDER WORKERS [--legacy]`, with megatron-core installed.

The loop of Megatron-LM's `tools/preprocess_data.py`, which its package leaves out: lines to a pool of processes, 32 at
a time, and the documents that come back to its own builder. `benchmarks/preprocess.py` runs it beside ours.
"""

import json
import multiprocessing
import sys

from megatron.core.datasets.indexed_dataset import DType, IndexedDatasetBuilder
from megatron.core.tokenizers.text.libraries.huggingface_tokenizer import HuggingFaceTokenizer


class Encoder:
    """The tokenizer of a process in the pool, which encodes the lines."""

    def __init__(self, folder: str, legacy: bool) -> None:
        self.folder, self.legacy = folder, legacy

    def start(self) -> None:
        """Load the tokenizer into a process of the pool."""
        Encoder.tokenizer = HuggingFaceTokenizer(self.folder, use_fast=True, include_special_tokens=self.legacy)

    def encode(self, line: str) -> tuple[dict[str, list[int]], dict[str, list[int]], int]:
        """(key -> ids of a document, key -> their counts, number of characters) of a line."""
        ids = Encoder.tokenizer.text_to_ids(json.loads(line)["text"])
        if ids:
            ids.append(Encoder.tokenizer.eos_id)
        return {"text": ids}, {"text": [len(ids)] if ids else []}, len(line)


def main(file: str, prefix: str, folder: str, workers: str, *legacy: str) -> None:
    """Write the data set PREFIX_text_document."""
    encoder = Encoder(folder, bool(legacy))
    encoder.start()
    size = len(Encoder.tokenizer.tokenizer)
    with open(file, encoding="utf-8") as lines:
        pool = multiprocessing.Pool(int(workers), initializer=encoder.start)
        builder = IndexedDatasetBuilder(f"{prefix}_text_document.bin", dtype=DType.optimal_dtype(size))
        for ids, lengths, _ in pool.imap(encoder.encode, lines, 32):
            builder.add_document(ids["text"], lengths["text"])
    builder.finalize(f"{prefix}_text_document.idx")
    pool.close()
    pool.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
