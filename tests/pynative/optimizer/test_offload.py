"""Optimizer states in host memory or in files: which part, who updates it, and that nothing else changes."""

import errno
import re
from pathlib import Path
from unittest.mock import patch

import mindspore as ms
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mindspore import Tensor

from parallel_core.buffers.layout import BucketRule, Span, offloaded, plan_buffers
from parallel_core.config import OptimizerConfig
from parallel_core.config.optimizer import OffloadConfig
from parallel_core.config.update_rules.adam import EXP_AVG, EXP_AVG_SQ
from parallel_core.numerics.lr_schedule import Rates
from parallel_core.optimizer import Treatment
from parallel_core.sharding import ShardSpec, place
from pynative.memory import in_place
from tests.support.ascend.memory import DeviceVector
from tests.support.ascend.stack import ascend_operators
from tests.support.distributed import run
from tests.support.engine import TINY
from tests.support.layouts import train

FLAGS = f"{TINY} --global-batch-size 4 --weight-decay 0.1 --lr 1e-2"


@given(st.lists(st.integers(1, 300), min_size=1, max_size=6), st.floats(0, 1), st.integers(1, 3))
def test_the_share_that_is_offloaded(sizes, fraction, replicas):
    """`offloaded` cuts at parameters, puts each element in one place, and takes at least the fraction asked for, by
    less than one parameter more."""
    specs = [(place(ShardSpec(shape=(size,)), {}), "float32") for size in sizes]
    (plan,) = plan_buffers(specs, rule=BucketRule.sharded(replicas))
    owned = plan.owned_by({"intra-dp-cp": (replicas - 1, replicas)}, sharded=True)
    elsewhere, rest = offloaded(plan, owned, fraction)
    assert sorted(i for span in (*elsewhere, *rest) for i in range(*span)) == [
        i for span in owned for i in range(*span)
    ]
    share, total = sum(span.size for span in elsewhere), sum(span.size for span in owned)
    assert fraction * total <= share < fraction * total + max(sizes) + BucketRule.sharded(replicas).bucket_alignment
    starts = {entry.start for entry in plan.entries} | {edge for span in owned for edge in span}
    assert all(edge in starts for span in (*elsewhere, *rest) for edge in span)


def in_files(backend, flags: str, directory: str):
    """(outcome of a run, for each step (states' elements mapped from files of the directory, all), by
    /proc/self/maps)."""
    from pynative.optimizer.flat_optimizer import FlatOptimizer

    sizes = []

    class Watched(FlatOptimizer):
        def step(self, *settings) -> None:
            super().step(*settings)
            maps = re.findall(rf"^(\w+)-(\w+) \S+ \S+ \S+ \d+ +{directory}/", Path("/proc/self/maps").read_text(), re.M)
            mapped = [(int(start, 16), int(stop, 16)) for start, stop in maps]
            vectors = [
                vector for _, _, states in self.states_of_parameters() for vector in states.values() if vector.size
            ]
            inside = [any(a <= vector.data_ptr() < b for a, b in mapped) for vector in vectors]
            sizes.append(
                (sum(v.size for v, is_in in zip(vectors, inside, strict=True) if is_in), sum(v.size for v in vectors))
            )

    with patch("pynative.optimizer.optimizer.FlatOptimizer", Watched):
        return train(backend, flags), sizes


@pytest.mark.parametrize(("fraction", "least", "most"), [(1.0, 1.0, 1.0), (0.5, 0.5, 0.9)])
@pytest.mark.parametrize("types", ["", "--bf16"])
def test_states_in_files_are_states(tmp_path, fraction, least, most, types):
    """The run equals one with states in memory bit for bit, as large a part as was asked for is mapped from files, and
    no file is left."""
    plain = run(1, train, f"{FLAGS} {types}")[0]
    flags = f"{FLAGS} {types} --nvme-path {tmp_path} --optimizer-offload-fraction {fraction}"
    found, sizes = run(1, in_files, flags, str(tmp_path))[0]
    assert found.losses == plain.losses and found.state.keys() == plain.state.keys()
    for name, values in {**plain.final, **plain.state}.items():
        np.testing.assert_array_equal({**found.final, **found.state}[name], values, err_msg=name)
    assert sizes and all(least <= inside / total <= most for inside, total in sizes)
    assert not list(tmp_path.iterdir())


def test_a_directory_that_cannot_be_written_to_is_named(tmp_path):
    """An --nvme-path that cannot be written to is a ValueError that names it; a fraction of 0 offloads nothing."""
    from pynative.optimizer.offload import allocate_states

    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"--nvme-path .*file/x: cannot be written to"):
        allocate_states(OffloadConfig(nvme_path=str(tmp_path / "file" / "x")))
    assert allocate_states(OffloadConfig(cpu_offload_optimizer=True, optimizer_offload_fraction=0.0)) is None


def test_a_full_disk_is_an_error(tmp_path):
    """Room for states in files is asked for when they are made, so a full disk is an error about --nvme-path, not
    SIGBUS at the first update."""
    from pynative.optimizer.offload import InFiles

    files, full = InFiles(str(tmp_path)), OSError(errno.ENOSPC, "No space left on device")
    with (
        patch("os.posix_fallocate", side_effect=full),
        pytest.raises(ValueError, match=rf"--nvme-path {tmp_path}: no room for 4000 bytes .* No space left"),
    ):
        files(1000, np.dtype(np.float32))
    assert not files(1000, np.dtype(np.float32)).any()


@pytest.mark.parametrize("is_16_bit", [False, True])
def test_an_accelerators_states_are_the_hosts(is_16_bit):
    """On doubles of an Ascend: states are numpy arrays, weights and gradients the device's; the host kernel updates
    copies, and new weights are copied back."""
    from pynative.distributed.flat_memory import FlatMemory, SplitMemory
    from pynative.kernels.host import optimizer as host
    from pynative.optimizer.offload import where_states_are
    from pynative.optimizer.sweep import Step, Sweep
    from pynative.optimizer.updates import adam

    whole, calls = Span(0, 64), []
    weights, gradient = (np.random.default_rng(seed).standard_normal(64).astype(np.float32) for seed in (1, 2))

    def counted(*operands, **named):
        calls.append([operand.data_ptr() for operand in operands[:4]])
        return host.adam_(*operands, **named)

    with ascend_operators(), patch.dict("pynative.kernels.host.OPERATORS", adam_=counted):
        device = [FlatMemory([whole], dtype) for dtype in ("bfloat16" if is_16_bit else "float32", "float32")]
        states = [SplitMemory([whole], [], "float32", np.zeros) for _ in range(3)]
        assert all(isinstance(memory._memory, DeviceVector) for memory in device)
        assert all(isinstance(memory.parts[0]._memory, np.ndarray) for memory in states)
        param, grad = (memory.span(*whole) for memory in device)
        first, second, main = (memory.span(*whole) for memory in states)
        ms.ops.assign(grad, Tensor(gradient))
        in_place.assign(param, Tensor(weights))
        in_place.assign(main, Tensor(weights))
        moments = {EXP_AVG: first, EXP_AVG_SQ: second}
        weights_of = (main, param) if is_16_bit else (param, None)
        sweep = Sweep(Treatment("adam", False, False), weights_of[0], grad, moments, weights_of[1])
        with where_states_are(sweep, states_are_on_host=True) as here:
            adam(here, OptimizerConfig(), Step(1, Rates(0.1, 0.0, 0.1), 1.0))
    assert len(calls) == 1 and calls[0][2:] == [first.data_ptr(), second.data_ptr()]
    assert grad.data_ptr() not in calls[0] and param.data_ptr() not in calls[0]
    expected = weights - 0.1 * np.sign(gradient)  # The expected values are those of Adam's first step.
    np.testing.assert_allclose((main if is_16_bit else param).asnumpy(), expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(param.astype(ms.float32).asnumpy(), expected, rtol=8e-3, atol=8e-3)
    np.testing.assert_allclose(first.asnumpy(), 0.1 * gradient, rtol=1e-5)
