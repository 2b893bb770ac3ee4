"""Our safetensors files against the safetensors package: each reads what the other writes."""

import errno
import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from parallel_core.checkpoint.tensor_file import TensorFile, damage, write_tensors
from parallel_core.numerics.dtypes import DTYPES


def _tensors() -> dict[str, np.ndarray]:
    """An array of each stored type but bfloat16, a scalar, an empty array, and one that is not contiguous."""
    values = np.arange(12).reshape(3, 4)
    made = {name: values.astype(name) for name in DTYPES if name != "bfloat16"}
    return made | {"scalar": np.float32(3).reshape(()), "empty": np.zeros((0, 2), np.float32), "turned": values.T}


def test_the_package_reads_our_files(tmp_path):
    """The package reads types and values of our files, scalars, empty and non-contiguous arrays included."""
    write_tensors(tmp_path / "t", _tensors())
    read = safetensors.numpy.load_file(tmp_path / "t")
    assert read.keys() == _tensors().keys()
    for name, values in _tensors().items():
        assert read[name].dtype == values.dtype
        np.testing.assert_array_equal(read[name], values)


def test_we_read_the_packages_files(tmp_path):
    """Our reader takes the package's files, also with metadata in the header; `shape` of an unknown name is None."""
    ordered = {name: np.ascontiguousarray(values) for name, values in _tensors().items()}
    safetensors.numpy.save_file(ordered, tmp_path / "t", metadata={"format": "np"})
    file = TensorFile(tmp_path / "t")
    for name, values in ordered.items():
        assert file.shape(name) == values.shape
        np.testing.assert_array_equal(file.array(name), values)
    assert file.shape("other") is None


def test_bfloat16(tmp_path):
    """MindSpore's bfloat16 arrays are written as BF16 with their bits, and read as float32 values."""
    mindspore = pytest.importorskip("mindspore")
    values = np.array([1.0, -0.5, 3.140625, 1e30], np.float32)
    bfloat16 = mindspore.from_numpy(values).astype(mindspore.bfloat16).asnumpy()
    write_tensors(tmp_path / "t", {"w": bfloat16})
    with safetensors.safe_open(tmp_path / "t", "np") as file:
        assert file.get_slice("w").get_dtype() == "BF16"
    read = TensorFile(tmp_path / "t").array("w")
    np.testing.assert_array_equal(read, bfloat16.astype(np.float32))
    assert read.dtype == np.float32


def test_eight_bits_are_no_values(tmp_path):
    """A tensor of 8 bits has its bits in `tensor`; `array` refuses it, as its values need scales that lie
    elsewhere."""
    header = json.dumps({"w": {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [0, 2]}}).encode()
    (tmp_path / "t").write_bytes(len(header).to_bytes(8, "little") + header + b"\x38\x40")
    file = TensorFile(tmp_path / "t")
    assert file.tensor("w").read().tolist() == [0x38, 0x40]
    with pytest.raises(ValueError, match="t: w is float8_e4m3"):
        file.array("w")


def test_the_record_is_of_the_bytes_on_disk(tmp_path):
    """Size and checksums (of the file and of each tensor) that `write_tensors` returns are those of the written
    file."""
    record = write_tensors(tmp_path / "t", _tensors())
    assert record.size == (tmp_path / "t").stat().st_size and record.crc32.keys() == {"", *_tensors()}
    assert damage(tmp_path / "t", record, TensorFile) is None


def test_a_file_that_may_not_be_read_is_named(tmp_path, monkeypatch):
    """A file that the system does not let this user open is damage with its path, as any other."""
    record = write_tensors(tmp_path / "t", _tensors())

    def refused(path, *arguments, **named):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "open", refused)
    assert damage(tmp_path / "t", record, TensorFile) == f"{tmp_path / 't'}: cannot be read (Permission denied)"


@pytest.mark.parametrize("keep", [0, 5, 40, -1])
def test_a_file_that_is_cut_off_is_named(tmp_path, keep):
    """A file cut off in its length, header or data is an error with its path."""
    write_tensors(tmp_path / "t", _tensors())
    whole = (tmp_path / "t").read_bytes()
    (tmp_path / "t").write_bytes(whole[:keep])
    with pytest.raises(ValueError, match=str(tmp_path / "t")):
        TensorFile(tmp_path / "t")


def test_a_type_that_cannot_be_stored_is_refused(tmp_path):
    """A complex array is refused by name: nothing is converted silently."""
    with pytest.raises(ValueError, match=r"c: a checkpoint holds .*complex64"):
        write_tensors(tmp_path / "t", {"c": np.zeros(2, np.complex64)})
