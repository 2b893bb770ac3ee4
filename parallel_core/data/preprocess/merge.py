"""Several data sets in one, as Megatron's `tools/merge_datasets.py`."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from parallel_core.data.indexed_dataset import Index, IndexedDataset, bin_path, idx_path
from parallel_core.system.files import ReplacingFile


def prefixes_in(folder: Path) -> list[str]:
    """The prefixes (paths) of a folder's .bin and .idx files, but hidden ones, each once, in order of name. Raises
    ValueError for a folder that is missing or has none."""
    if not folder.is_dir():
        raise ValueError(
            f"--input {folder} is no folder; give one with .bin and .idx files, or the prefixes themselves"
        )
    files = [file for file in folder.iterdir() if file.suffix in (".bin", ".idx") and not file.name.startswith(".")]
    found = sorted({str(file.with_suffix("")) for file in files})
    if not found:
        raise ValueError(f"--input {folder} has no .bin and .idx files")
    return found


def merge(prefixes: Sequence[str], output_prefix: str) -> Index:
    """Write the documents of all data sets one after the other, and return the new index. The tokens are copied piece
    by piece.

    Raises ValueError for a data set that is missing or damaged, or differs from the first in the type of tokens or in
    being multimodal, for one that would be read and written, and for no data set at all.
    """
    data_sets = [IndexedDataset(prefix) for prefix in prefixes]
    for data_set in data_sets:
        if data_set.dtype != data_sets[0].dtype:
            raise ValueError(
                f"{data_set.path_prefix} has tokens of {data_set.dtype}, {prefixes[0]} of {data_sets[0].dtype}; "
                "preprocess one again with the other's tokenizer"
            )
        if (data_set.sequence_modes is None) != (data_sets[0].sequence_modes is None):
            raise ValueError(f"{data_set.path_prefix} and {prefixes[0]}: one is multimodal, the other is not")
        if bin_path(data_set.path_prefix).resolve() == bin_path(output_prefix).resolve():
            raise ValueError(
                f"--output-prefix {output_prefix} is among the data sets that are merged; give another name"
            )
    index = _index(data_sets)
    tokens = ReplacingFile(bin_path(output_prefix))
    try:
        for prefix in prefixes:
            with bin_path(prefix).open("rb") as file:
                shutil.copyfileobj(file, tokens.file, 1 << 20)
        idx_path(output_prefix).unlink(missing_ok=True)
        tokens.publish()
    finally:
        tokens.discard()
    index.write(idx_path(output_prefix))
    return index


def _index(data_sets: Sequence[IndexedDataset]) -> Index:
    starts = np.cumsum([0, *map(len, data_sets)])
    documents = [each.document_indices[1:] + start for each, start in zip(data_sets, starts[:-1], strict=True)]
    modes = [each.sequence_modes for each in data_sets if each.sequence_modes is not None]
    return Index.from_lengths(
        np.concatenate([each.sequence_lengths for each in data_sets]),
        np.concatenate([[0], *documents]),
        data_sets[0].dtype,
        np.concatenate(modes) if modes else None,
    )
