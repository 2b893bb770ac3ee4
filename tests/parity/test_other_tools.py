"""transformers and Megatron-Core themselves read the files that we convert for them, and compute the recorded logits.

They are no dependency: name a Python that has them, and ask for these tests,

TRANSFORMERS_PYTHON=.../python MEGATRON_PYTHON=.../python pytest -m exhaustive tests/parity/test_other_tools.py

with `transformers` and `torch`, or `megatron-core` and `torch`. A minute.
"""

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from parallel_core.checkpoint.convert.__main__ import main
from tests.support.assets import asset
from tests.support.checkpoint_cases import CASES, facts, unpack

READERS = Path(__file__).resolve().parents[1] / "support" / "readers"
OF_MEGATRON = ("hf/gpt2", "hf/llama", "hf/mixtral", "legacy/gpt2_tp2_te_names", "legacy/llama_tp2_bf16")
WITHOUT_A_FAMILY = {
    "torch_dist/moe_mixed_ep2",
    "torch_dist/moe_ep2_pp2_vpp2_bf16_distopt_default",
    "legacy/moe_ep2_grouped_gemm_bf16_distopt",
}


def interpreter(variable: str) -> str:
    """The path of the Python that this environment variable names; the test is skipped if it is not set."""
    path = os.environ.get(variable)
    if path is None:
        pytest.skip(f"{variable} names no Python")
    return path


def written(case: str, folder: Path, kind: str, *flags: str) -> Path:
    """Convert a recorded case to our format and from there to `kind`; the folder with both, and the prompt in
    ids.npy."""
    source, place = unpack(case, folder), folder / f"out_{case.replace('/', '_')}"
    ids = str(facts(case)["vocab_size"])
    quiet = ("--logits", "no")
    assert main(["--input", str(source), "--output", str(place / "ours"), *quiet]) == 0
    name = "huggingface" if kind == "hf" else kind
    command = ["--input", str(place / "ours"), "--output", str(place / name), "--to", kind, "--vocab-size", ids]
    assert main([*command, *quiet, *flags]) == 0
    np.save(place / "ids.npy", np.load(asset(f"checkpoints/{case}.npz"))["input_ids"])
    return place


def compare(case: str, place: Path) -> None:
    """Check `place`/logits.npy against the recorded logits, within 2e-5, which tools differ by among themselves; padded
    ids left out."""
    expected, ids = np.load(asset(f"checkpoints/{case}.npz"))["logits"], facts(case)["vocab_size"]
    found = np.load(place / "logits.npy")
    np.testing.assert_allclose(found[..., :ids], expected[..., :ids], rtol=0, atol=2e-5, err_msg=case)


@pytest.mark.exhaustive
def test_transformers_reads_what_is_written_for_it(tmp_path):
    """transformers loads every case whose family it has: no weight is missing or unexpected, and logits are the
    recorded ones."""
    python = interpreter("TRANSFORMERS_PYTHON")
    cases = [case for case in CASES if case not in WITHOUT_A_FAMILY]
    places = [written(case, tmp_path, "hf") for case in cases]
    command = [python, str(READERS / "of_transformers.py"), *map(str, places)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": ""}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")] == [{}] * len(cases)
    for case, place in zip(cases, places, strict=True):
        compare(case, place)


@pytest.mark.exhaustive
def test_megatron_reads_what_is_written_for_it(tmp_path):
    """Megatron-Core on two tensor-parallel ranks: each rank's model takes exactly the weights of its file."""
    python = interpreter("MEGATRON_PYTHON")
    sizes = ("--tensor-model-parallel-size", "2", "--make-vocab-size-divisible-by", "4")
    places = [written(case, tmp_path, "megatron", *sizes) for case in OF_MEGATRON]
    launch = [python, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(READERS / "of_megatron.py")]
    environment = {**os.environ, "PYTHONPATH": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*launch, *map(str, places)], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    for case, place in zip(OF_MEGATRON, places, strict=True):
        compare(case, place)
