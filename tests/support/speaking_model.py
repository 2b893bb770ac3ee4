"""A HuggingFace folder with a model and a tokenizer that fit: a recorded tiny model's shape, with room for 3072 ids."""

import json
import shutil
from pathlib import Path

import numpy as np

from parallel_core.checkpoint.tensor_file import TensorFile, write_tensors
from tests.support.checkpoint_cases import unpack
from tests.support.instruction import inputs

VOCABULARY = 3072


def speaking_model(case: str, tokenizer: str, folder: Path) -> Path:
    """Write the folder below `folder`: weights are drawn so that the model learns, norms are one. Its path."""
    target = unpack(case, folder)
    shutil.copytree(inputs() / "tokenizers" / tokenizer, target, dirs_exist_ok=True)
    config = json.loads((target / "config.json").read_text())
    sizes = {"vocab_size": VOCABULARY, "max_position_embeddings": 256, "dtype": "float32"}
    (target / "config.json").chmod(0o644)
    (target / "config.json").write_text(json.dumps(config | sizes))
    random = np.random.default_rng(0)
    weights = {}
    file = TensorFile(target / "model.safetensors")
    for name in file.names:
        shape = [VOCABULARY if size == config["vocab_size"] else size for size in file.tensor(name).shape]
        drawn = random.normal(0, 0.1, shape).astype(np.float32)
        weights[name] = np.ones(shape, np.float32) if len(shape) == 1 else drawn
    (target / "model.safetensors").unlink()
    write_tensors(target / "model.safetensors", weights, {"format": "pt"})
    return target
