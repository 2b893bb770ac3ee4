"""Writing a model as a HuggingFace folder."""

import json
from collections.abc import Iterator
from pathlib import Path

from parallel_core.checkpoint.convert.huggingface.config import config_of, matching_family
from parallel_core.checkpoint.convert.huggingface.read import CONFIG, split
from parallel_core.checkpoint.convert.huggingface.tokenizer import copy_files, files_in, ids_in
from parallel_core.checkpoint.convert.model import Model, in_files
from parallel_core.checkpoint.convert.native import read_native
from parallel_core.checkpoint.lazy import LazyTensor
from parallel_core.checkpoint.tensor_file import write_tensors
from parallel_core.config import AllConfig, serialise
from parallel_core.findings import Finding

MOST_BYTES = 5 * 10**9
"""The most bytes of a file of weights: transformers' default."""


def write_huggingface(
    model: Model, directory: Path, model_type: str | None = None, tokenizer: Path | None = None
) -> None:
    """Write config.json and the weights into `directory`, which is empty; without rows that only pad the vocabulary.
    model_type: the family; None: that of the files that the model was read from, else the first that fits. tokenizer: a
    folder whose tokenizer and settings of generation are copied, and whose config.json's special ids are taken over.

    Raises ValueError if that family is not known here or has no such models (where the first that fits is taken: if
    none fits), or if it has no place for one of the weights.
    """
    model = model.with_rows(model.unpadded_vocab_size)
    full = serialise.config_of(model.settings)
    family = matching_family(full, model_type or model.model_type)
    tensors = split(model, family)
    config = config_of(full, family)
    if full.model_config.multi_token_prediction.depths:
        config["num_nextn_predict_layers"] = full.model_config.multi_token_prediction.depths
    dtype = model.weights["embedding.word_embeddings.weight"].dtype
    config |= {"dtype": dtype, "torch_dtype": dtype, **ids_in(tokenizer)}
    shards = list(in_files(tensors.items(), MOST_BYTES))
    if len(shards) == 1:
        write_tensors(directory / "model.safetensors", tensors, {"format": "pt"})
    else:
        _write_shards(directory, shards)
    (directory / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    if tokenizer is not None:
        copy_files(tokenizer, files_in(tokenizer), directory)


def add_huggingface(folder: Path, model_type: str | None) -> None:
    """Write the model of our checkpoint `folder`, adapters merged, as a HuggingFace folder `huggingface` inside of it.
    model_type: as for `write_huggingface`. Raises ValueError as that does, and if the checkpoint cannot be read."""
    model, directory = read_native(folder, optimizer=False), folder / "huggingface"
    directory.mkdir(exist_ok=True)  # an earlier try that failed may have left it
    write_huggingface(model, directory, model_type)


def huggingface_findings(config: AllConfig) -> Iterator[Finding]:
    """A finding for --enable-mg2hf-convert, before the training, if the family that is asked for does not have this
    network; where none is asked for, if no known family has it."""
    asked = config.training_config.checkpoint
    if asked.convert_to_huggingface:
        try:
            matching_family(config, asked.huggingface_model_type)
        except ValueError as error:
            yield Finding("--enable-mg2hf-convert", None, str(error), "remove it")


def _write_shards(directory: Path, shards: list[dict[str, LazyTensor]]) -> None:
    names: dict[str, str] = {}
    for number, part in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        write_tensors(directory / file, part, {"format": "pt"})
        names |= dict.fromkeys(part, file)
    size = sum(tensor.nbytes for part in shards for tensor in part.values())
    index = {"metadata": {"total_size": size}, "weight_map": names}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
