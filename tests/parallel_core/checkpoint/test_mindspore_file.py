"""MindSpore's .ckpt files: MindSpore reads what is written here, and what MindSpore writes is read here."""

from unittest.mock import patch

import numpy as np
import pytest

from parallel_core.checkpoint.lazy import LazyTensor
from parallel_core.checkpoint.mindspore_file import MindSporeFile, open_tensors, write_mindspore
from parallel_core.checkpoint.tensor_file import damage

ARRAYS = {
    "decoder.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "half": np.linspace(-1, 1, 7, dtype=np.float16),
    "steps": np.array(5, np.int64),
    "flags": np.array([True, False]),
}
BITS = np.array([0x3F80, 0xC000], np.uint16)
"""1 and -2 in bfloat16."""


@pytest.fixture
def written(tmp_path):
    """(path, record of checksums) of a .ckpt file with the arrays and a bfloat16 one; slices are so short that the
    first tensor has three entries."""
    tensors = ARRAYS | {"brain": LazyTensor(BITS.shape, "bfloat16", lambda: BITS)}
    with patch("parallel_core.checkpoint.mindspore_file._SLICE", 20):  # the first tensor is three entries
        return tmp_path / "network_rank_0-0_2.ckpt", write_mindspore(tmp_path / "network_rank_0-0_2.ckpt", tensors)


@pytest.mark.slow
def test_mindspore_reads_what_is_written(written):
    """MindSpore's load_checkpoint gives the types, shapes and values that were written, also of a tensor in several
    entries."""
    import mindspore as ms

    found = ms.load_checkpoint(str(written[0]))
    for name, array in ARRAYS.items():
        assert found[name].shape == array.shape
        np.testing.assert_array_equal(found[name].asnumpy(), array, err_msg=name)
    assert found["brain"].dtype == ms.bfloat16
    np.testing.assert_array_equal(found["brain"].astype(ms.float32).asnumpy(), [1, -2])


@pytest.mark.slow
@pytest.mark.parametrize("crc_check", [False, True])
def test_what_mindspore_writes_is_read(tmp_path, crc_check):
    """Files of MindSpore's save_checkpoint are read with and without the checksum that it can append (`crc_check`),
    bfloat16 included."""
    import mindspore as ms

    values = [{"name": name, "data": ms.Tensor(array)} for name, array in ARRAYS.items()]
    values.append({"name": "brain", "data": ms.Tensor([1, -2], ms.bfloat16)})
    ms.save_checkpoint(values, str(tmp_path / "x.ckpt"), crc_check=crc_check)
    file = open_tensors(tmp_path / "x.ckpt")
    assert isinstance(file, MindSporeFile) and file.names == [*ARRAYS, "brain"]
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(file.array(name), array, err_msg=name)
        assert file.tensor(name).read().dtype == array.dtype and file.shape(name) == array.shape
    np.testing.assert_array_equal(file.array("brain"), [1, -2])
    np.testing.assert_array_equal(file.tensor("brain").read(), BITS)


def test_parts_come_back_in_one(written):
    """A tensor that was written in several entries is read as one array."""
    np.testing.assert_array_equal(open_tensors(written[0]).array("decoder.weight"), ARRAYS["decoder.weight"])


def test_every_flipped_byte_is_found_and_its_tensor_named(written):
    """Each byte that is changed (values, names, shapes, lengths) is reported with the path and, in values, with the
    tensor."""
    path, record = written
    good = path.read_bytes()
    assert damage(path, record, open_tensors) is None
    named = 0
    for place in range(len(good)):
        path.write_bytes(good[:place] + bytes([good[place] ^ 16]) + good[place + 1 :])
        message = damage(path, record, open_tensors)
        assert message and str(path) in message, place
        named += "decoder.weight" in message
    assert named >= ARRAYS["decoder.weight"].nbytes


@pytest.mark.parametrize("content", [b"", b"\n", b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", b"\x12\x02ab"])
def test_what_is_no_such_file_is_refused(tmp_path, content):
    """A file that is no MindSpore checkpoint is an error with its path; an empty one has no tensors."""
    (tmp_path / "x.ckpt").write_bytes(content)
    with pytest.raises(ValueError, match=r"x\.ckpt: not a readable MindSpore file") if content else _nothing():
        assert open_tensors(tmp_path / "x.ckpt").names == []


def _nothing():
    """A context that expects no error."""
    from contextlib import nullcontext

    return nullcontext()
