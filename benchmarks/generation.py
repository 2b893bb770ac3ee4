"""`python benchmarks/generation.py [--transformers PYTHON] [--threads 2]`: tokens/s of generation with a cache.

A LLaMA-shaped model (hidden 512, 8 layers, 8 heads, vocabulary 8192, float32, random) is written as HuggingFace's; both
programs load that folder, and continue the same prompts of 32 ids greedily, in turns. PYTHON is the interpreter of an
environment that has `transformers` and `torch`; without it ours alone is measured. The median of the turns is printed,
for batches of 1 and of 8, also after the time of the prompt itself was taken off.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # transformers' interpreter runs this file, too

from benchmarks.measured_program import Program
from parallel_core.system.command_line import command_line

HIDDEN, LAYERS, HEADS, FFN, VOCABULARY, PROMPT = 512, 8, 8, 1376, 8192, 32
Ask = Callable[[int, int], float]
"""(prompts of a batch, new tokens of each) -> seconds."""


def write_model(folder: Path) -> None:
    """Write the model into `folder` in HuggingFace's format."""
    from safetensors.numpy import save_file

    rng, wide = np.random.default_rng(0), {"gate": (FFN, HIDDEN), "up": (FFN, HIDDEN), "down": (HIDDEN, FFN)}
    shapes = {name: (VOCABULARY, HIDDEN) for name in ("model.embed_tokens.weight", "lm_head.weight")}
    for layer in (f"model.layers.{number}" for number in range(LAYERS)):
        shapes |= {f"{layer}.self_attn.{part}_proj.weight": (HIDDEN, HIDDEN) for part in "qkvo"}
        shapes |= {f"{layer}.mlp.{part}_proj.weight": shape for part, shape in wide.items()}
    tensors = {name: rng.standard_normal(shape, np.float32) * np.float32(0.04) for name, shape in shapes.items()}
    norms = [f"model.layers.{n}.{kind}_layernorm.weight" for n in range(LAYERS) for kind in ("input", "post_attention")]
    tensors |= {name: np.ones(HIDDEN, np.float32) for name in (*norms, "model.norm.weight")}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "dtype": "float32",
        "hidden_size": HIDDEN, "intermediate_size": FFN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS, "vocab_size": VOCABULARY, "max_position_embeddings": 1024, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))


def prompts(batch: int) -> np.ndarray:
    """Ids [b, s] of the prompts of a batch."""
    return np.random.default_rng(1).integers(2, VOCABULARY, (batch, PROMPT))


def ours(folder: Path, threads: int) -> Ask:
    """A function that measures this project's generation with the model in `folder`."""
    from pynative.generation import Asked, generate_texts
    from pynative.generation.command import loaded
    from pynative.generation.options import config_of

    model = loaded(folder, config_of(folder, "float32", device_target="CPU", threads=threads))

    def ask(batch: int, count: int) -> float:
        start = time.perf_counter()
        texts = generate_texts(model, prompts(batch).tolist(), Asked(count))
        assert all(len(text.new) == count for text in texts)
        return time.perf_counter() - start

    return ask


def theirs(folder: Path, threads: int) -> Ask:
    """A function that measures `transformers`' generation with the model in `folder`. It looks for a package `kernels`,
    and must not find the file of that name beside this one."""
    sys.path.remove(str(Path(__file__).resolve().parent))
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def ask(batch: int, count: int) -> float:
        ids = torch.from_numpy(prompts(batch))
        start = time.perf_counter()
        said = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count, min_new_tokens=count
        )
        assert said.shape[1] == PROMPT + count
        return time.perf_counter() - start

    return ask


def serve(program: str, folder: Path, threads: int) -> None:
    """Answer each line "batch count" of standard input with the seconds of `program` ("ours" or "theirs")."""
    ask = {"ours": ours, "theirs": theirs}[program](folder, threads)
    print("ready", flush=True)
    for line in sys.stdin:
        print(ask(*map(int, line.split())), flush=True)


def measure(programs: dict[str, Program], batch: int, count: int, turns: int) -> dict[str, float]:
    """Tokens/s of each program by its name, and as "<name>, later tokens" of the tokens behind the first: medians of
    the turns. batch: prompts; count: new tokens of each."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in programs}
    for turn in range(turns + 1):
        for name, program in programs.items():
            taken = program.seconds(batch, count), program.seconds(batch, 1)
            if turn:  # the first one warms up
                times[name].append(taken)
    line = {}
    for name, taken in times.items():
        line[name] = round(batch * count / median(whole for whole, _ in taken), 1)
        line[f"{name}, later tokens"] = round(batch * (count - 1) / median(whole - one for whole, one in taken), 1)
    return line


def main() -> None:
    """Measure one or both programs in turns and print the figures."""
    parser = command_line(__doc__)
    parser.add_argument("--transformers", metavar="PYTHON", help="an interpreter that has transformers")
    parser.add_argument("--threads", type=int, default=2, help="of each program")
    parser.add_argument("--tokens", type=int, default=64, help="new ones of each text")
    parser.add_argument("--turns", type=int, default=5, help="measurements of each, in turns")
    parser.add_argument("--serve", choices=("ours", "theirs"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve(options.serve, options.folder, options.threads)
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder))
        pythons = {"ours": sys.executable} | ({"theirs": options.transformers} if options.transformers else {})
        given = ["--folder", folder, "--threads", str(options.threads)]
        programs = {name: Program([python, __file__, "--serve", name, *given]) for name, python in pythons.items()}
        for batch in (1, 8):
            line: dict[str, float | int] = {"batch": batch, **measure(programs, batch, options.tokens, options.turns)}
            if "theirs" in line:
                line["ratio"] = round(line["ours"] / line["theirs"], 2)
            print(json.dumps(line), flush=True)
        for program in programs.values():
            program.process.kill()
    return None


if __name__ == "__main__":
    main()
