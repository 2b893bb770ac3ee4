"""Our safetensors files are what the safetensors package takes them for, and the other way round."""

import numpy as np
import pytest
import safetensors.numpy

from parallel_core.checkpoint.tensor_file import DTYPES, TensorFile, record_of, write_tensors


def _tensors() -> dict[str, np.ndarray]:
    values = np.arange(12).reshape(3, 4)
    made = {name: values.astype(name) for name in DTYPES}
    return made | {"scalar": np.float32(3).reshape(()), "empty": np.zeros((0, 2), np.float32), "turned": values.T}


def test_the_package_reads_our_files(tmp_path):
    """Every type, scalars, empty and non-contiguous arrays."""
    write_tensors(tmp_path / "t", _tensors())
    read = safetensors.numpy.load_file(tmp_path / "t")
    assert read.keys() == _tensors().keys()
    for name, values in _tensors().items():
        assert read[name].dtype == values.dtype
        np.testing.assert_array_equal(read[name], values)


def test_we_read_the_packages_files(tmp_path):
    """Also with its metadata in the header."""
    ordered = {name: np.ascontiguousarray(values) for name, values in _tensors().items()}
    safetensors.numpy.save_file(ordered, tmp_path / "t", metadata={"format": "np"})
    file = TensorFile(tmp_path / "t")
    for name, values in ordered.items():
        assert file.shape(name) == values.shape
        np.testing.assert_array_equal(file.array(name), values)
    assert file.shape("other") is None


def test_the_record_is_of_the_bytes_on_disk(tmp_path):
    """The digest made while writing is the digest of the file."""
    assert write_tensors(tmp_path / "t", _tensors()) == record_of(tmp_path / "t")


@pytest.mark.parametrize("keep", [0, 5, 40, -1])
def test_a_file_that_is_cut_off_is_named(tmp_path, keep):
    """Wherever the cut is: in the length, in the header, in the data."""
    write_tensors(tmp_path / "t", _tensors())
    whole = (tmp_path / "t").read_bytes()
    (tmp_path / "t").write_bytes(whole[:keep])
    with pytest.raises(ValueError, match=str(tmp_path / "t")):
        TensorFile(tmp_path / "t")


def test_a_type_that_cannot_be_stored_is_refused(tmp_path):
    """Nothing is converted silently."""
    with pytest.raises(ValueError, match=r"c: a checkpoint holds .*complex64"):
        write_tensors(tmp_path / "t", {"c": np.zeros(2, np.complex64)})
