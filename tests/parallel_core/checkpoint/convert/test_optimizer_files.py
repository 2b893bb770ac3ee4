"""Megatron's optimizer states (legacy and torch_dist): buffers of experts, keys, flat buckets, and states that belong
to no weight."""

from types import SimpleNamespace

import numpy as np
import pytest

from parallel_core.checkpoint.convert.megatron import buckets, optimizer, torch_dist
from parallel_core.checkpoint.lazy import assembled, of_array
from parallel_core.checkpoint.torch_files.archive import read_archive
from parallel_core.checkpoint.torch_files.write import write_archive
from parallel_core.sharding import Box
from tests.support.checkpoint_cases import digests, unpack

DENSE = "decoder.final_layernorm.weight"
EXPERT = "decoder.layers.0.mlp.experts.local_experts.{}.linear_fc1.weight"


def rank_file(folder, expert: int, states: list) -> SimpleNamespace:
    """An expert rank's file with one weight of an expert and one of the rest, and its distributed optimizer's flat
    states beside it."""
    folder.mkdir()
    path = folder / "model_optim_rng.pt"
    write_archive(path, {name: of_array(np.ones(2, np.float32)) for name in (EXPERT.format(expert), DENSE)})
    write_archive(folder / optimizer.DISTRIBUTED, states)
    return SimpleNamespace(path=path, content={}, chunks=[read_archive(path)])


def flat(value: float) -> dict:
    """The first moments of a flat buffer of two elements, both `value`."""
    return {0: {"dtypes": {"exp_avg": of_array(np.full(2, value, np.float32))}}}


def test_experts_have_buffers_of_their_own(tmp_path):
    """The distributed optimizer of the experts is the second in a file, wherever experts stand in the model; the other
    parameters' states are in the first expert rank's file alone."""
    for expert, states in enumerate(([flat(1.0), flat(2.0)], [None, flat(3.0)])):
        file = rank_file(tmp_path / str(expert), expert, states)
        _, found = optimizer.rank_states(file, [list(file.chunks[0])])
        values = {name: tensor.read()[0] for name, tensor in found["exp_avg"].items()}
        assert values == {EXPERT.format(expert): 2.0 + expert} | ({DENSE: 1.0} if expert == 0 else {})


def opened(monkeypatch, tmp_path, tensors, objects=()):
    """The model read from a torch_dist checkpoint with these tensors and these objects of its distributed optimizer."""
    write_archive(tmp_path / torch_dist.COMMON, {"iteration": 3})
    (tmp_path / torch_dist.CONFIG).write_text('{"sharded_backend": "torch_dist"}')
    monkeypatch.setattr(torch_dist, "read_tensors", lambda folder: tensors)
    monkeypatch.setattr(torch_dist, "_objects", lambda folder: iter(objects))
    return torch_dist.read_torch_dist(tmp_path)


def test_keys_of_chained_optimizers(monkeypatch, tmp_path):
    """Keys that begin with a chained optimizer's number (`chained_1.optimizer.state...`) belong to the weight that they
    name."""
    weights = {"decoder.final_layernorm.weight": (2,), "embedding.word_embeddings.weight": (4, 2)}
    states = {f"chained_{n}.optimizer.state.exp_avg.{name}": shape for n, (name, shape) in enumerate(weights.items())}
    tensors = {key: of_array(np.zeros(shape, np.float32)) for key, shape in (weights | states).items()}
    model = opened(monkeypatch, tmp_path, tensors)
    assert model.weights.keys() == weights.keys() == model.states["exp_avg"].keys()


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ([f"chained_{n}.optimizer.state.exp_avg.{DENSE}" for n in range(2)], "another one has, too"),
        ([f"optimizer.state.exp_avg.{DENSE}s"], "is not there"),
    ],
)
def test_states_that_belong_to_no_weight_are_refused(keys, words, monkeypatch, tmp_path):
    """Two states of one kind for one weight, or one for a weight that is not there, are refused with the key."""
    tensors = {key: of_array(np.zeros(2, np.float32)) for key in (DENSE, *keys)}
    with pytest.raises(ValueError, match=words) as error:
        opened(monkeypatch, tmp_path, tensors)
    assert keys[-1] in str(error.value)


def test_what_the_distributed_optimizer_keeps_apart(monkeypatch, tmp_path):
    """The distributed optimizer's own count of steps (which may differ from the iteration), hyperparameters and loss
    scaler are read."""
    key = "optimizer.distributed.dp_group_idx_0."
    scaler = {"scale": of_array(np.array([512.0], np.float32)), "growth_tracker": 2, "hysteresis_tracker": 1}
    objects = [
        (f"{key}optimizer", [{"param_groups": [{"step": 2, "betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.5}]}]),
        (f"{key}grad_scaler", [scaler]),
    ]
    tensors = {name: of_array(np.zeros(2, np.float32)) for name in (DENSE, f"optimizer.state.exp_avg.{DENSE}")}
    position = opened(monkeypatch, tmp_path, tensors, objects).position
    assert (position.iteration, position.optimizer_steps) == (3, 2)
    assert position.hyperparameters == {"betas": (0.8, 0.9), "eps": 1e-6, "weight_decay": 0.5}
    assert position.loss_scaler == {"kind": "dynamic", "scale": 512.0, "growth_tracker": 2, "hysteresis_tracker": 1}


def test_states_that_one_rank_gathered(monkeypatch, tmp_path):
    """States that one rank gathered (`dp_zero_gather_scatter`, one object with whole buckets) are read as those stored
    by bucket."""
    folder = next(unpack("torch_dist/llama_dp2_bf16_distopt_default", tmp_path).glob("iter_*"))
    expected, tensors = torch_dist.read_torch_dist(folder).states, torch_dist.read_tensors(folder)
    flat = {key.rpartition(".")[2]: tensors.pop(key) for key in list(tensors) if key.startswith("optimizer.")}
    gathered = ("optimizer.distributed.dp_group_idx_0.param_state", [{"buckets_coalesced": True, 0: {"types": flat}}])
    monkeypatch.setattr(torch_dist, "read_tensors", lambda folder: tensors)
    monkeypatch.setattr(torch_dist, "_objects", lambda folder: iter([gathered]))
    found = torch_dist.read_torch_dist(folder).states
    assert {state: digests(t) for state, t in found.items()} == {state: digests(t) for state, t in expected.items()}


def test_states_that_megatron_mixed_up_are_refused(monkeypatch, tmp_path):
    """States of `fully_reshardable` whose float32 values are another parameter's, as Megatron writes with several
    buckets, are refused, with --no-load-optim as the fix: the moments are wrong, too."""
    folder = next(unpack("torch_dist/llama_tp2_pp2_dp2_bf16_distopt", tmp_path).glob("iter_*"))
    tensors, key = torch_dist.read_tensors(folder), "optimizer.state.param.decoder.final_layernorm.weight"
    values = np.roll(tensors[key].read(), 1)
    changed = tensors | {key: assembled(values.shape, "float32", [(Box((0,), values.shape, (0,)), of_array(values))])}
    monkeypatch.setattr(torch_dist, "read_tensors", lambda folder: changed)
    with pytest.raises(ValueError, match=r"final_layernorm.*--no-load-optim"):
        torch_dist.read_torch_dist(folder)


def test_flat_states_of_an_order_that_nobody_knows_are_refused(monkeypatch, tmp_path):
    """Flat states whose float32 values match the weights at no order of parameters are refused, with --no-load-optim as
    the fix; without the optimizer the checkpoint is read."""
    folder = next(unpack("torch_dist/llama_dp2_bf16_distopt_default", tmp_path).glob("iter_*"))
    monkeypatch.setattr(buckets, "rounds_to", lambda main, weight: False)
    with pytest.raises(ValueError, match="--no-load-optim"):
        torch_dist.read_torch_dist(folder)
    assert torch_dist.read_torch_dist(folder, optimizer=False).states == {}


def test_halves_and_numbered_experts_of_single_shards(monkeypatch, tmp_path):
    """`singleton_local_shards`: gate (`_w`) and up (`_v`), stored under two keys for each numbered expert, become one
    fc1 weight of that expert."""
    name = "decoder.layers.1.mlp.experts.experts.3.linear_fc1.weight"
    tensors = {f"{name}_{half}": of_array(np.full((2, 3), value, np.float32)) for half, value in (("w", 1), ("v", 2))}
    (tensor,) = (weights := opened(monkeypatch, tmp_path, tensors).weights).values()
    assert list(weights) == ["decoder.layers.1.mlp.experts.local_experts.3.linear_fc1.weight"]
    assert tensor.read()[:, 0].tolist() == [1, 1, 2, 2]


def test_gaps_between_the_buckets_of_a_flat_state():
    """`_gaps` lists how many elements may be missing in the file at a bucket's end, where memory is padded to a
    multiple of 128 and the file is not; 0 alone where nothing tells that a bucket ended."""
    assert [optimizer._gaps(*ends) for ends in ((100, 128), (64, 128), (60, 64), (128, 128))] == [
        [0, 28], [64], [0], [0]
    ]  # fmt: skip
