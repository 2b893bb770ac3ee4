"""`python benchmarks/conversion.py [--parameters 1e9] [--folder DIR]`: memory and speed of converting a large model.

A LLaMA-shaped bfloat16 model with random weights is written as HuggingFace's, and converted HuggingFace -> ours ->
Megatron-LM's (tp 2, pp 2) -> ours -> HuggingFace, each by the command in a process of its own, verification included.
Prints the peak of resident memory and bytes of the model a second; the folder is removed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from math import ceil
from pathlib import Path

import numpy as np

from parallel_core.checkpoint.lazy import LazyTensor
from parallel_core.checkpoint.tensor_file import write_tensors
from parallel_core.system.command_line import command_line

HIDDEN, FFN, HEADS, VOCABULARY = 2048, 5504, 16, 32000
ROOT = Path(__file__).resolve().parents[1]


def tensors(layers: int) -> dict[str, LazyTensor]:
    """Random weights under HuggingFace's names, made when they are written."""

    def random(*shape: int) -> LazyTensor:
        seed = len(made)

        def load() -> np.ndarray:
            values = np.random.default_rng(seed).standard_normal(shape, np.float32) * np.float32(0.02)
            return (values.view(np.uint32) >> 16).astype(np.uint16)

        return LazyTensor(shape, "bfloat16", load)

    made: dict[str, LazyTensor] = {}
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        made[name] = random(VOCABULARY, HIDDEN)
    made["model.norm.weight"] = random(HIDDEN)
    for layer in range(layers):
        start = f"model.layers.{layer}."
        for part in "qkvo":
            made[f"{start}self_attn.{part}_proj.weight"] = random(HIDDEN, HIDDEN)
        for part in ("gate", "up"):
            made[f"{start}mlp.{part}_proj.weight"] = random(FFN, HIDDEN)
        made[f"{start}mlp.down_proj.weight"] = random(HIDDEN, FFN)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            made[f"{start}{norm}.weight"] = random(HIDDEN)
    return made


def write_source(folder: Path, parameters: float) -> int:
    """Write a HuggingFace folder with about so many parameters; the bytes of its weights."""
    a_layer = 4 * HIDDEN * HIDDEN + 3 * HIDDEN * FFN
    layers = max(2, 2 * ceil((parameters - 2 * VOCABULARY * HIDDEN) / a_layer / 2))
    weights = tensors(layers)
    folder.mkdir()
    write_tensors(folder / "model.safetensors", weights, {"format": "pt"})
    config = {
        "model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "intermediate_size": FFN,
        "num_hidden_layers": layers, "num_attention_heads": HEADS, "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False, "hidden_act": "silu",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return sum(tensor.nbytes for tensor in weights.values())


def measured(arguments: list[str]) -> tuple[float, float, float]:
    """(seconds, processor seconds, peak of resident memory in GiB) of the command `convert` with these arguments.
    Raises RuntimeError if it fails."""
    command = [sys.executable, "-m", "parallel_core.checkpoint.convert", *arguments]
    begin = time.perf_counter()
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise RuntimeError(" ".join(command))
    return time.perf_counter() - begin, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / (1 << 20)


def main() -> None:
    """Convert in each direction and print a line for each."""
    parser = command_line(__doc__)
    parser.add_argument("--parameters", type=float, default=1e9, help="of the model")
    parser.add_argument("--folder", type=Path, help="where there is room for five times the model")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        folder = Path(scratch)
        size = write_source(folder / "hf", options.parameters)
        cuts = ["--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size", "2"]
        print(f"{size / 2e9:.2f} billion parameters, {size / 2**30:.2f} GiB")
        for source, target, kind, more in (
            ("hf", "ours", "native", []),
            ("ours", "megatron", "megatron", cuts),
            ("megatron", "ours2", "native", []),
            ("ours2", "hf2", "hf", ["--vocab-size", str(VOCABULARY)]),
        ):
            paths = ["--input", str(folder / source), "--output", str(folder / target), "--to", kind]
            seconds, busy, peak = measured([*paths, *more])
            speed = size / seconds / 1e6
            print(
                f"{source} -> {target}: peak {peak:.2f} GiB, {seconds:.1f} s ({busy:.1f} on a core), {speed:.0f} MB/s"
            )
            if source != "hf":
                shutil.rmtree(folder / source)


if __name__ == "__main__":
    main()
