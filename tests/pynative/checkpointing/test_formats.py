"""--ckpt-format and --ckpt-prefix: MindSpore's own file for each rank, beside the manifest that all formats have."""

import numpy as np
import pytest

from parallel_core.checkpoint import commit
from parallel_core.checkpoint.inspect import main as inspect
from parallel_core.checkpoint.manifest import MANIFEST, Manifest
from tests.support.checkpoint_jobs import assert_same, train
from tests.support.distributed import Failed, outcomes, run

FLAGS = "--bf16 --use-distributed-optimizer --lr-decay-iters 4 --hidden-dropout 0.1"
MINDSPORE = f"{FLAGS} --ckpt-format ckpt --ckpt-prefix llama"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """(folder of a run of two ranks with --ckpt-format ckpt, outcome of the run after two further steps)."""
    directory = tmp_path_factory.mktemp("save")
    return directory, run(2, train, f"{MINDSPORE} --train-iters 4 --save {directory} --save-interval 2", look_at=2)[0]


def test_a_rank_has_a_file_that_mindspore_reads(checkpoint):
    """ms.load_checkpoint reads each rank's .ckpt, named as MindSpeed-Core-MS names it; each value is in exactly one of
    the files."""
    import mindspore as ms

    directory, outcome = checkpoint
    folder = commit.find(directory, 2)
    files = {f"llama_rank_{rank}-0_2.ckpt" for rank in (0, 1)}
    assert {path.name for path in folder.iterdir()} == files | {MANIFEST}
    assert Manifest.read(folder).files.keys() == files
    found = [ms.load_checkpoint(str(folder / name)) for name in sorted(files)]
    name = "decoder.layers.0.mlp.linear_fc1.weight"
    values = found[0][name].astype(ms.float32).asnumpy()
    np.testing.assert_array_equal(values, outcome.seen.weights[name])
    assert name not in found[1] and f"exp_avg.{name}" in found[0] | found[1]


def test_the_run_goes_on_to_the_bit_and_another_layout_takes_over(checkpoint):
    """--load of .ckpt files, without a flag that names the format: a resumed run equals the uninterrupted one, and tp2
    loads the same state."""
    directory, outcome = checkpoint
    resumed = run(2, train, f"{FLAGS} --train-iters 4 --load {directory} --ckpt-step 2")[0]
    assert_same(resumed, outcome)
    assert resumed.losses == outcome.losses[2:]
    tp2 = f"{FLAGS} --train-iters 4 --tensor-model-parallel-size 2 --load {directory} --ckpt-step 2"
    assert_same(run(2, train, tp2, False)[0], outcome.seen)


def test_tools_read_it(checkpoint, tmp_path, capsys):
    """`inspect` checks and writes out a checkpoint of .ckpt files: every weight and state is the run's. Converters use
    the same reader."""
    directory, outcome = checkpoint
    arguments = [
        str(directory),
        "--check",
        "--npz",
        str(tmp_path / "w.npz"),
        "--optimizer-npz",
        str(tmp_path / "o.npz"),
    ]
    assert inspect(arguments) == 0
    for file, expected in (("w.npz", outcome.weights), ("o.npz", outcome.moments)):
        found = np.load(tmp_path / file)
        assert len(found.files) == len(expected)
        for name in found.files:
            values = expected[name.replace("fp32_param", "main_param")]
            np.testing.assert_array_equal(found[name], values, err_msg=name)


def test_a_flipped_bit_is_found(checkpoint):
    """A flipped bit in a .ckpt file is reported with file and tensor, as in safetensors."""
    directory, _ = checkpoint
    path = commit.find(directory, 4) / "llama_rank_1-0_4.ckpt"
    good = path.read_bytes()
    path.write_bytes(good[:-3] + bytes([good[-3] ^ 1]) + good[-2:])
    try:
        ended = outcomes(2, train, f"{FLAGS} --load {directory}", False)
    finally:
        path.write_bytes(good)
    assert all(isinstance(each, Failed) and "nothing was loaded" in each.text for each in ended)
    text = "".join(each.text for each in ended)
    assert path.name in text


def test_safetensors_take_a_prefix_that_is_given(tmp_path):
    """--ckpt-prefix mine is put before Megatron's file name, which is alone without the flag."""
    run(1, train, f"--train-iters 1 --save {tmp_path} --ckpt-prefix mine")
    assert sorted(Manifest.read(commit.find(tmp_path)).files) == ["mine_mp_rank_00_000.safetensors"]


def save_by_call(backend, directory, **arguments) -> str:
    from mindspore import nn

    from pynative.dist_checkpointing import load_checkpoint, save_checkpoint
    from pynative.parameter import initialize_parameters
    from pynative.transformer.gpt_model import GPTModel
    from tests.support.engine import TINY, config_of, job

    config = config_of(TINY, 1)
    with job(backend, config):
        model = nn.CellList([GPTModel(config.model_config)])
        initialize_parameters(model, 1)
        path = save_checkpoint(config, model, ckpt_path=directory, step_num=3, **arguments)
        assert load_checkpoint(config, model, ckpt_path=directory, format="ckpt")["step_num"] == 3
        return sorted(file.name for file in path.iterdir())


def test_the_call_of_the_earlier_system_takes_format_and_prefix(tmp_path):
    """`save_checkpoint` with format and prefix writes <prefix>_rank_0-0_<step>.ckpt, which `load_checkpoint` reads."""
    names = run(1, save_by_call, tmp_path, format="ckpt", prefix="gpt")[0]
    assert names == ["gpt_rank_0-0_3.ckpt", MANIFEST]
