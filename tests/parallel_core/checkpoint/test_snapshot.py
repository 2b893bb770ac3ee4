"""`Snapshot`, copies of a run's tensors made in pieces by several threads, in memory that later snapshots use again."""

import threading
from dataclasses import replace

import numpy as np
import pytest

from parallel_core.checkpoint import snapshot
from parallel_core.checkpoint.lazy import of_array
from parallel_core.checkpoint.snapshot import HostMemory, Snapshot
from parallel_core.checkpoint.writer import LocalTensor
from parallel_core.sharding import ShardSpec, place


def tensors_of(arrays: dict[str, np.ndarray]) -> dict[str, LocalTensor]:
    """The arrays as a rank's uncut tensors, by name."""
    return {
        name: LocalTensor(place(ShardSpec(shape=array.shape, name=name), {}), of_array(array))
        for name, array in arrays.items()
    }


def some(seed: int = 0) -> dict[str, np.ndarray]:
    """Random float32 arrays, among them one without axes and one without elements."""
    draw = np.random.default_rng(seed)
    shapes = {"matrix": (60, 7), "vector": (33,), "number": (), "nothing": (0, 3)}
    return {name: draw.standard_normal(shape).astype(np.float32).reshape(shape) for name, shape in shapes.items()}


def assert_copied(made: Snapshot, arrays: dict[str, np.ndarray]) -> None:
    """Check that the snapshot is complete and has the values of `arrays`."""
    assert made.is_complete and made.tensors.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(made.tensors[name].values.read(), array)


def test_copies_keep_the_values_of_then(monkeypatch):
    """Copies made in pieces by three threads keep the values at the time of the snapshot, though the arrays change
    later."""
    monkeypatch.setattr(snapshot, "PIECE", 20)
    arrays = some()
    then = {name: array.copy() for name, array in arrays.items()}
    made = Snapshot(tensors_of(arrays), HostMemory())
    threads = [threading.Thread(target=made.copy) for _ in range(3)]
    for thread in threads:
        thread.start()
    made.finish()
    for array in arrays.values():
        array[...] = 0
    assert_copied(made, then)
    for thread in threads:
        thread.join()


def test_who_finishes_waits_for_what_another_thread_has_begun(monkeypatch):
    """`finish` returns only after a piece that another thread has taken and holds back is copied."""
    arrays, take, begun, go_on = some(), Snapshot._take, threading.Event(), threading.Event()

    def take_and_wait(made: Snapshot):
        piece = take(made)
        if threading.current_thread() is other:
            begun.set()
            assert go_on.wait(60)
        return piece

    monkeypatch.setattr(Snapshot, "_take", take_and_wait)
    made = Snapshot(tensors_of(arrays), HostMemory())
    other = threading.Thread(target=made.copy)
    other.start()
    assert begun.wait(60)
    made.copy()
    assert not made.is_complete
    threading.Timer(0.05, go_on.set).start()
    made.finish()
    assert_copied(made, arrays)
    other.join()


def test_memory_stays_where_it_fits():
    """The next snapshot's copies lie in the last one's memory where shape and type are the same, else in new memory."""
    memory = HostMemory()
    memory.touch(memory.hold(tensors_of(some())))
    first = Snapshot(tensors_of(some(1)), memory)
    first.finish()
    places = {name: tensor.values.read().ctypes.data for name, tensor in first.tensors.items()}
    others = some(2) | {"vector": np.zeros(9, np.float16), "more": np.ones(3, np.int32)}
    second = Snapshot(tensors_of(others), memory)
    second.finish()
    assert_copied(second, others)
    same = {name for name, tensor in second.tensors.items() if tensor.values.read().ctypes.data == places.get(name)}
    assert same >= {"matrix", "number"}


def test_memory_that_is_made_ready_is_left_alone_once_it_is_needed(monkeypatch):
    """`touch`, which writes zeros to the memory in advance, stops as soon as a snapshot is made: its copies stay."""
    memory, pieces, arrays = HostMemory(), snapshot._pieces, some()
    held = memory.hold(tensors_of(arrays))
    made: list[Snapshot] = []

    def pieces_and_a_snapshot(array: np.ndarray):
        for piece in pieces(array):
            yield piece
            if not made:
                made.append(Snapshot(tensors_of(arrays), memory))
                made[0].finish()

    monkeypatch.setattr(snapshot, "_pieces", pieces_and_a_snapshot)
    memory.touch(held)
    assert_copied(made[0], arrays)


def test_memory_is_not_made_ready_once_copies_are_there():
    """A thread of `touch` that a busy machine lets begin only after the first snapshot changes no copy."""
    memory, arrays = HostMemory(), some()
    held = memory.hold(tensors_of(arrays))
    made = Snapshot(tensors_of(arrays), memory)
    made.finish()
    memory.touch(held)
    assert_copied(made, arrays)


def test_sixteen_bits_are_copied_as_they_are():
    """A bfloat16 tensor, which numpy holds as uint16, is copied bit by bit and keeps its type."""
    bits = np.arange(10, dtype=np.uint16)
    tensor = tensors_of({"w": bits})["w"]
    made = Snapshot({"w": tensor._replace(values=replace(tensor.values, dtype="bfloat16"))}, HostMemory())
    made.finish()
    assert made.tensors["w"].values.dtype == "bfloat16"
    np.testing.assert_array_equal(made.tensors["w"].values.read(), bits)


def test_a_source_that_cannot_be_read_is_told_and_nobody_waits_for_it():
    """An error while a tensor is read is raised by `copy`, and `finish` does not wait for that tensor."""

    def fail() -> np.ndarray:
        raise MemoryError("none left")

    tensor = tensors_of({"w": np.zeros(4, np.float32)})["w"]
    made = Snapshot({"w": tensor._replace(values=replace(tensor.values, load=fail))}, HostMemory())
    with pytest.raises(MemoryError):
        made.copy()
    made.finish()
