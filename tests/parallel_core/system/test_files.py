"""`replacing`: a file appears whole or not at all."""

import pytest

from parallel_core.system.files import replacing


def test_the_old_file_stays_until_the_new_one_is_whole(tmp_path):
    """The old file is there until the block ends, then the new one; no other file stays."""
    path = tmp_path / "new" / "f"
    with replacing(path) as file:
        file.write(b"old")
        assert not path.exists()
    with replacing(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new" and list(path.parent.iterdir()) == [path]


def test_a_failure_leaves_nothing_behind(tmp_path):
    """An exception in the block leaves neither the file nor a temporary one."""
    with pytest.raises(RuntimeError, match="half way"), replacing(tmp_path / "f") as file:
        file.write(b"half")
        raise RuntimeError("half way")
    assert list(tmp_path.iterdir()) == []
