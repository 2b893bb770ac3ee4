"""The recipes of examples/gpt: planned at their published sizes and world sizes, trained small."""

import math
import os
import subprocess
from math import prod
from pathlib import Path

import pytest

from mapping.reading import read
from parallel_core.config import AllConfig
from parallel_core.costs import StagePlan, memory
from tests.support.assets import ROOT
from tests.support.distributed import run
from tests.support.public_scripts import train_script
from tests.support.tokenizer_records import unpack

PUBLISHED = {
    "llama3_8b": (64, 8_030_261_248),
    "qwen3_8b": (64, 8_190_735_360),
    "mixtral": (64, 46_702_792_704),
    "qwen3_moe": (256, 235_093_634_560),
    "deepseek_v3": (2048, 671_026_419_200 - 58 * 256),
}
"""Recipe -> (ranks, trained parameters of the released model), without multi-token prediction and the biases of 256
experts' scores in 58 layers, which no optimizer moves."""
TOKENIZERS = {
    "llama3_8b": "hf_llama3",
    "qwen3_8b": "hf_qwen2",
    "mixtral": "hf_llama/tokenizer.model",
    "qwen3_moe": "hf_qwen2",
    "deepseek_v3": "hf_deepseek",
}
"""Recipe -> folder or file of a small tokenizer, of some 3000 ids, of the kind that the released model has."""
MOST_MEMORY = 80 * 2**30
"""Bytes of memory of the device that such models are trained on."""


def flags_of(recipe: str, folder: Path, **sizes: str) -> tuple[int, list[str]]:
    """(world size, flags) that the recipe's script gives msrun with these variables in its environment."""
    fake = folder / "python"
    fake.write_text('#!/bin/sh\nfor word in "$@"; do printf \'%s\\n\' "$word"; done\n')
    fake.chmod(0o755)
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PLAN": "1", **sizes}
    script = ROOT / "examples" / "gpt" / f"{recipe}.sh"
    done = subprocess.run(["bash", script], env=environment, capture_output=True, text=True, check=True)
    words = done.stdout.splitlines()
    assert words[:4] == ["-m", "mapping", "explain", "--world-size"] and words[5] == "--"
    return int(words[4]), words[6:]


def parameters(config: AllConfig) -> dict[str, int]:
    """Parameter name -> number of elements in the whole model, each counted once, experts of all ranks included."""
    parallel = config.parallel_config
    specs = [
        spec for stage in range(parallel.pipeline_model_parallel_size) for spec in StagePlan(config, stage).parameters
    ]
    ranks = parallel.expert_model_parallel_size
    return {spec.name: prod(spec.shape) * (ranks if "ep" in spec.distinct_over else 1) for spec in specs}


@pytest.mark.parametrize("recipe", PUBLISHED)
def test_a_published_size_is_planned(recipe, tmp_path):
    """Every flag of the recipe is accepted, the model has its published number of parameters, and the predicted memory
    of each stage is below 80 GiB."""
    world, flags = flags_of(recipe, tmp_path, SIZE="published")
    reading = read(flags, world_size=world)
    assert not reading.findings
    sizes = parameters(reading.config)
    further = sum(size for name, size in sizes.items() if name.startswith("mtp."))
    assert (world, sum(sizes.values()) - further) == PUBLISHED[recipe]
    last_layer = sum(size for name, size in sizes.items() if name.startswith("decoder.layers.60."))
    assert further == (last_layer and last_layer + 2 * 7168**2 + 3 * 7168) * (recipe == "deepseek_v3")
    stages = range(reading.config.parallel_config.pipeline_model_parallel_size)
    assert all(0 < memory(StagePlan(reading.config, stage)).total < MOST_MEMORY for stage in stages)


@pytest.mark.parametrize("recipe", PUBLISHED)
def test_a_small_size_trains(recipe, tmp_path):
    """Two steps on two ranks, which share layers, experts or the batch: the same loss on both, near that of a uniform
    guess, and falling."""
    sizes = {"SEQ_LENGTH": "32", "MAX_POSITIONS": "32", "MICRO_BATCH_SIZE": "2", "GLOBAL_BATCH_SIZE": "4"}
    world, flags = flags_of(recipe, tmp_path, TRAIN_ITERS="2", WARMUP_ITERS="0", NUM_LAYERS="2", **sizes)
    first, *others = run(world, train_script, [*flags, "--eval-iters", "0", "--mock-data"], tmp_path)
    assert all([step[:2] for step in ranks] == [step[:2] for step in first] for ranks in others)
    losses = [step.loss for step in first]
    assert losses[0] == pytest.approx(math.log(512), abs=0.3) and losses[1] < losses[0]
    assert all(math.isfinite(step.gradient_norm) and step.gradient_norm > 0 for step in first)


@pytest.mark.parametrize("recipe", TOKENIZERS)
def test_the_models_own_tokenizer_is_taken(recipe, tmp_path):
    """With TOKENIZER the recipe's flags have the tokenizer type of the released model and that tokenizer's
    vocabulary."""
    _, flags = flags_of(recipe, tmp_path, TOKENIZER=str(unpack(tmp_path) / TOKENIZERS[recipe]))
    reading = read(flags, world_size=2, read_vocabulary=True)
    assert not reading.findings and 3000 <= reading.config.model_config.unpadded_vocab_size < 3010
    assert reading.config.dataset_config.tokenizer_type == flags[flags.index("--tokenizer-type") + 1] != "NullTokenizer"


def test_a_published_model_has_a_tokenizer(tmp_path):
    """SIZE=published without TOKENIZER is refused: with the example's small vocabulary it would be another model."""
    script = ROOT / "examples" / "gpt" / "llama3_8b.sh"
    environment = {**os.environ, "SIZE": "published", "OUTPUT": str(tmp_path), "TOKENIZER": ""}
    done = subprocess.run(["bash", script], env=environment, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("error: TOKENIZER: give the folder or file")
