"""Optimizer states of runs with experts, in Megatron's two formats."""

from types import SimpleNamespace

import numpy as np
import pytest

from parallel_core.checkpoint.convert.megatron import blocks_of_states, optimizer, torch_dist
from parallel_core.checkpoint.lazy import of_array
from parallel_core.checkpoint.torch_files.archive import read_archive
from parallel_core.checkpoint.torch_files.write import write_archive

DENSE = "decoder.final_layernorm.weight"
EXPERT = "decoder.layers.0.mlp.experts.local_experts.{}.linear_fc1.weight"


def rank_file(folder, expert: int, states: list) -> SimpleNamespace:
    """A rank's file with one weight of an expert and one of the rest, and the flat states beside it."""
    folder.mkdir()
    path = folder / "model_optim_rng.pt"
    write_archive(path, {name: of_array(np.ones(2, np.float32)) for name in (EXPERT.format(expert), DENSE)})
    write_archive(folder / optimizer.DISTRIBUTED, states)
    return SimpleNamespace(path=path, content={}, chunks=[read_archive(path)])


def flat(value: float) -> dict:
    """The states of a buffer of two entries."""
    return {0: {"dtypes": {"exp_avg": of_array(np.full(2, value, np.float32))}}}


def test_experts_have_buffers_of_their_own(tmp_path):
    """Their optimizer comes second, whatever comes first in the model; the rest is in the first expert rank's file
    alone, where the others have nothing."""
    for expert, states in enumerate(([flat(1.0), flat(2.0)], [None, flat(3.0)])):
        file = rank_file(tmp_path / str(expert), expert, states)
        _, found = optimizer.rank_states(file, [list(file.chunks[0])])
        values = {name: tensor.read()[0] for name, tensor in found["exp_avg"].items()}
        assert values == {EXPERT.format(expert): 2.0 + expert} | ({DENSE: 1.0} if expert == 0 else {})


def test_keys_of_chained_optimizers(monkeypatch, tmp_path):
    """Experts and the rest have optimizers of their own, by whose numbers keys of torch_dist can begin."""
    weights = {"decoder.final_layernorm.weight": (2,), "embedding.word_embeddings.weight": (4, 2)}
    states = {f"chained_{n}.optimizer.state.exp_avg.{name}": shape for n, (name, shape) in enumerate(weights.items())}
    tensors = {key: of_array(np.zeros(shape, np.float32)) for key, shape in (weights | states).items()}
    monkeypatch.setattr(torch_dist, "read_tensors", lambda folder: tensors)
    model = torch_dist.read_torch_dist(tmp_path)
    assert model.weights.keys() == weights.keys() == model.states["exp_avg"].keys()


@pytest.mark.parametrize(
    ("args", "apart"),
    [
        ({}, False),
        ({"num_experts": 4}, False),
        ({"num_experts": 4, "expert_model_parallel_size": 2}, True),
        ({"num_experts": 4, "expert_tensor_parallel_size": 1}, True),
        ({"num_experts": 4, "expert_tensor_parallel_size": 2}, False),
    ],
)
def test_experts_share_the_flat_buffers_where_the_same_ranks_cut_them(args, apart):
    """Of a run on two tensor-parallel ranks; where they do not, their buckets have no names and are refused."""
    assert blocks_of_states._experts_apart(args, 2) is apart
