"""`compare` of runs and of recorded cases without a device: first difference of figures, parameters and data, and the
search by halves in checkpoints."""

import json
import math

import numpy as np
import pytest

from mapping.compare import main
from parallel_core.compare.checkpoints import halved
from parallel_core.compare.differences import differences, distance, place_in_model
from parallel_core.compare.recorded import Step, key, of_parameters, read_record, write_step
from parallel_core.compare.sample import Sample, of_activation
from parallel_core.sharding import Cut, ShardSpec
from tests.support.checkpoint_writing import save

NAMES = ("embedding.word_embeddings.weight", "decoder.layers.0.mlp.linear_fc1.weight", "output_layer.weight")


def case(folder, change=None):
    """A folder with a recorded case of three steps of four rows; `change(name, array)` gives what is stored in place of
    `array`."""
    folder.mkdir()
    generator = np.random.default_rng(3)
    weights = {name: generator.normal(size=(8, 4)).astype(np.float32) for name in NAMES}
    files = {
        "weights": weights,
        "grads_step1": {name: w * 0.1 for name, w in weights.items()},
        "weights_final": {name: w * 1.5 for name, w in weights.items()},
    }
    change = change or (lambda name, value: value)
    for file, arrays in files.items():
        np.savez(folder / f"{file}.npz", **{name: change(f"{file}/{name}", x) for name, x in arrays.items()})
    np.save(folder / "tokens.npy", change("tokens", generator.integers(0, 60, (12, 9)).astype(np.int32)))
    rows = [{"lm_loss": 4.0 - step, "grad_norm": 1.0 + step, "lr": 0.1} for step in range(3)]
    (folder / "curve.json").write_text(json.dumps(change("curve", rows)))
    resolved = {"micro_batch_size": 2, "bf16": False, "norm_epsilon": 1e-5}
    (folder / "config.json").write_text(json.dumps({"resolved_args": change("config", resolved)}))
    return folder


def _in(wanted, value):
    """A `change` for `case` that applies `value` to the entry named `wanted` alone."""
    return lambda name, given: value(given) if name == wanted else given


def _row(values):
    """A copy of the rows with rows 1 and 5 exchanged."""
    values = values.copy()
    values[[1, 5]] = values[[5, 1]]
    return values


CHANGES = {
    "a weight": (_in(f"weights/{NAMES[1]}", lambda w: w * 1.01), f"step 1, weight of {NAMES[1]}"),
    "a gradient": (_in(f"grads_step1/{NAMES[0]}", lambda g: g / 2), f"step 1, gradient of {NAMES[0]}"),
    "rows": (_in("tokens", _row), "step 1, data of tokens in micro-batch 0 (row 1, from position 0 on)"),
    "a loss": (_in("curve", lambda rows: [*rows[:1], {**rows[1], "lm_loss": 3.01}, rows[2]]), "step 2, loss"),
    "a norm": (_in("curve", lambda rows: [*rows[:2], {**rows[2], "grad_norm": 3.1}]), "step 3, grad_norm"),
    "a rate": (_in("curve", lambda rows: [{**rows[0], "lr": 0.10001}, *rows[1:]]), "step 1, lr"),
    "rounding": (_in(f"grads_step1/{NAMES[0]}", lambda g: g * np.float32(1 + 1e-6)), ""),
    "a setting": (_in("config", lambda config: {**config, "norm_epsilon": 1e-6}), ""),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_case_beside_another(name, tmp_path, capsys):
    """The first difference is named by step and tensor or figure, rounding is none unless --exact, exit code 1 says
    that there is one, and a setting that differs is printed though results agree."""
    change, named = CHANGES[name]
    assert main([str(case(tmp_path / "a", change)), str(case(tmp_path / "b"))]) == bool(named)
    said = capsys.readouterr().out
    assert (f"the first difference: {named}" if named else "the same in 3 steps") in said
    assert ("megatron.norm_epsilon: 1e-06 | 1e-05" in said) == (name == "a setting")
    exact = main([str(tmp_path / "a"), str(tmp_path / "b"), "--exact"])
    assert exact == (name != "a setting")
    said = capsys.readouterr().out
    assert "as far as rounding tells" not in said and ("and nothing differs\n" in said) == (not exact)


def test_folders_with_nothing_to_compare(tmp_path, capsys):
    """A folder without a record or, with --bisect, without checkpoints, is an error with exit code 2 that says how to
    make them."""
    assert main([str(tmp_path), str(case(tmp_path / "b"))]) == 2 and "--save" in capsys.readouterr().err
    assert main([str(tmp_path), str(tmp_path), "--bisect"]) == 2 and "checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize("first", [10, 20, 50, 80, None])
def test_halving_finds_the_first(first):
    """`halved` finds the first of 8 steps at which a run differs, or None, with at most 4 looks: one at the last step
    and one for each halving."""
    steps, looked = list(range(10, 90, 10)), []

    def differs(step):
        looked.append(step)
        return first is not None and step >= first

    assert halved(steps, differs) == first and len(looked) <= 4


def checkpoints(root, ranks: int, changes=None, steps=(10, 20, 30, 40)):
    """A run's checkpoints at `steps`, cut over `ranks`, the vocabulary of 5 ids padded to 4 rows for each rank; from
    step `since` on the weights in `changes` = (since, {name: function of all weights}) differ."""
    rows, (since, changed) = 4 * ranks, changes or (math.inf, {})
    for step in steps:
        tables = np.random.default_rng(step).normal(size=(3, 16, 4)).astype(np.float32)
        weights = dict(zip(NAMES, tables, strict=True))
        for name in (NAMES[0], NAMES[2]):
            weights[name] = np.concatenate([weights[name][:5], np.full((rows - 5, 4), ranks, np.float32)])
        weights |= {name: change(weights) for name, change in changed.items()} if step >= since else {}
        whole = {name: (ShardSpec(name=name, shape=x.shape, cuts=(Cut(0),)), x) for name, x in weights.items()}
        save(root, step, [whole], ranks, keep=9, vocabulary=(5, rows))
    return root


@pytest.mark.parametrize("since", [10, 30, 40])
def test_bisection_reads_the_checkpoints_of_both(since, tmp_path, capsys):
    """--bisect names the first step whose weights differ, the first such weight in the model's order and how far it is
    off, and the command that records the steps in question; another layout, padding and rounding are no difference."""
    one = checkpoints(tmp_path / "a", 2)
    changes = {name: lambda weights: weights[NAMES[1]] * np.float32(1.01) for name in (NAMES[1], "output_layer.bias")}
    assert main([str(one), str(checkpoints(tmp_path / "b", 4, (since, changes))), "--bisect"]) == 1
    said = capsys.readouterr().out
    assert f"the same up to step {since - 10}\n" in said
    assert f"the first that differ: step {since}, weight of {NAMES[1]}: 0.0099 apart" in said
    again = f"--load {one} --ckpt-step {since - 10} with" if since > 10 else "again with"
    assert f"{again} --record --record-step-start {since - 10} --record-step-end {since}" in said


def test_bisection_of_runs_whose_weights_are_the_same(tmp_path, capsys):
    """Runs whose weights differ by rounding are the same, with --exact they are not; a weight that only one run has is
    a difference."""
    rounded = {NAMES[1]: lambda weights: weights[NAMES[1]] * np.float32(1 + 1e-6)}
    more = {"output_layer.bias": lambda weights: weights[NAMES[1]]}
    one, same = checkpoints(tmp_path / "a", 2, steps=[10]), checkpoints(tmp_path / "b", 4, (10, rounded), [10])
    other = checkpoints(tmp_path / "c", 2, (10, more), [10])
    assert main([str(one), str(same), "--bisect"]) == 0
    assert "1 checkpoints of both, 1 of them read: weights are the same up to step 10" in capsys.readouterr().out
    assert main([str(one), str(same), "--bisect", "--exact"]) == 1
    assert main([str(one), str(one), "--bisect", "--exact"]) == 0
    assert "weights are the same up to step 10, and nothing differs\n" in capsys.readouterr().out
    assert main([str(one), str(other), "--bisect"]) == 1
    assert f"step 10, weight of output_layer.bias (only {other} has it)" in capsys.readouterr().out


def test_ranks_of_another_layout_make_the_same_record(tmp_path):
    """A recorded step reads the same whether one rank wrote it or two ranks of a context-parallel group each wrote
    their positions: activations by position, recorded entries and norms of parameters."""
    x = np.random.default_rng(0).normal(size=(256, 2, 8)).astype(np.float32)
    weight = np.arange(12, dtype=np.float32).reshape(3, 4)
    for layout, parts in (("one", [np.arange(256)]), ("two", [np.r_[0:64, 192:256], np.r_[64:192]])):
        for rank, positions in enumerate(parts):
            kept, places = of_activation(x[positions], positions, 256)
            arrays = {key("activation", 3, "0.0", "decoder.layers.0"): kept}
            arrays |= {key("positions", 3, "0.0", "decoder.layers.0"): places}
            arrays |= of_parameters("gradient", {"w": weight}) if rank == 0 else {}
            write_step(tmp_path / layout, 7, rank, arrays, {"loss": 2.0} if rank == 0 else None, "float32")
    one, two = read_record(tmp_path / "one", 7), read_record(tmp_path / "two", 7)
    assert not list(differences(7, one, two, exact=True))
    np.testing.assert_array_equal(two.activations[3, "0.0", "decoder.layers.0"], x[::4])
    assert two.gradients["w"].norm == pytest.approx(np.linalg.norm(weight))
    with pytest.raises(ValueError, match="no whole record"):
        read_record(tmp_path, 7)


def test_a_damaged_record_is_said(tmp_path):
    """A rank's file that is cut off anywhere, encrypted or packed by an unknown method, and a step.json without
    figures, is a ValueError about the record."""
    write_step(tmp_path, 7, 0, of_parameters("gradient", {"w": np.ones(3)}), {"loss": 2.0}, "float32")
    file = tmp_path / "step_00000007" / "rank_0.npz"
    whole = file.read_bytes()
    for size in (0, 3, 30, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:size])
        with pytest.raises(ValueError, match="no whole record"):
            read_record(tmp_path, 7)
    for place, byte in ((whole.index(b"PK\1\2") + 8, 1), (whole.index(b"PK\1\2") + 10, 99)):  # encrypted; unknown
        file.write_bytes(whole[:place] + bytes([byte]) + whole[place + 1 :])
        with pytest.raises(ValueError, match="no whole record"):
            read_record(tmp_path, 7)
    file.write_bytes(whole)
    assert "w" in read_record(tmp_path, 7).gradients
    (file.parent / "step.json").write_text("[1]")
    with pytest.raises(ValueError, match="no whole record"):
        read_record(tmp_path, 7)


def test_what_the_entries_do_not_show_the_norm_does():
    """The norm of a large gradient, of which only some elements are recorded, finds a difference in the others."""
    large = np.ones(1 << 18, np.float32)
    other = large.copy()
    other[1::4] = 2
    one, two = Step(gradients={"w": Sample.of(large)}), Step(gradients={"w": Sample.of(other)})
    assert distance(one.gradients["w"].values, two.gradients["w"].values) == 0
    assert [found.kind for found in differences(1, one, two)] == ["gradient"]


def test_names_sort_as_a_model_computes():
    """`place_in_model` sorts parameter names in the order of the forward: layers by number, in each the norm,
    attention, feed-forward, of two halves the first, experts and the second; embedding first, output layer last."""
    first = "decoder.layers.0"
    names = [
        "embedding.word_embeddings.weight",
        f"{first}.input_layernorm.weight",
        f"{first}.self_attention.linear_qkv.weight",
        f"{first}.self_attention.linear_proj.weight",
        f"{first}.mlp.linear_fc1.weight",
        "decoder.layers.1.first.self_attention.linear_qkv.weight",
        "decoder.layers.1.first.mlp.linear_fc1.weight",
        "decoder.layers.1.mlp.router.weight",
        "decoder.layers.1.second.self_attention.linear_qkv.weight",
        "decoder.layers.2.mlp.linear_fc2.weight",
        "decoder.layers.10.input_layernorm.weight",
        "decoder.final_layernorm.weight",
        "output_layer.weight",
    ]
    assert sorted(reversed(names), key=place_in_model) == names


def test_numbers_that_are_none():
    """`distance`: NaN at the same places is 0 apart; NaN in one array alone, or another shape, is infinitely far."""
    nan = np.array([1.0, np.nan])
    assert distance(nan, nan) == 0 and distance(nan, np.ones(2)) == np.inf == distance(np.ones(2), np.ones(3))


@pytest.mark.parametrize("size", [1e20, 1e-24])
def test_very_large_and_small_numbers_are_compared(size):
    """`distance` of float32 arrays whose squares are beyond float32 is that of moderate ones."""
    one, other = np.full(4, size, np.float32), np.full(4, 2 * size, np.float32)
    assert distance(one, other) == pytest.approx(0.5) and distance(one, one) == 0


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", b"[]"),
        ("config.json", b'{"resolved_args": []}'),
        ("curve.json", b"[]"),
        ("curve.json", b"{}"),
        ("curve.json", b"[1]"),
        ("weights.npz", b"PK\3\4"),
        ("weights.npz", b""),
    ],
)
def test_a_damaged_case_is_named(name, content, tmp_path, capsys):
    """A recorded case whose files are damaged or hold something else is an error with exit code 2 that names it."""
    one, other = case(tmp_path / "a"), case(tmp_path / "b")
    (one / name).write_bytes(content)
    assert main([str(one), str(other)]) == 2
    assert str(one) in capsys.readouterr().err
