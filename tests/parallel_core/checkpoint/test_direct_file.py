"""Files that are written past the page cache: every byte, at every length, whatever the file system can."""

import errno
import os

import numpy as np
import pytest

from parallel_core.checkpoint import direct_file
from parallel_core.checkpoint.direct_file import BLOCK, DirectFile


def pieces(*lengths: int) -> list[bytes]:
    return [np.random.default_rng(length).integers(0, 256, length, np.uint8).tobytes() for length in lengths]


@pytest.mark.parametrize("lengths", [(0,), (1,), (BLOCK,), (BLOCK - 1, 2), (7, BLOCK, 3 * BLOCK, 5), (BLOCK,) * 2])
def test_what_is_written_is_in_the_file(tmp_path, lengths):
    """Pieces that fill blocks or don't."""
    written = pieces(*lengths)
    with (tmp_path / "file").open("wb", buffering=0) as raw:
        file = DirectFile(raw)
        for piece in written:
            file.write(piece)
        file.finish()
    assert (tmp_path / "file").read_bytes() == b"".join(written)


class Picky:
    """A file whose system takes no write past the cache, though it does not say so, and never all bytes at once."""

    def __init__(self, raw, flags: list[int], error: int | None = errno.EINVAL) -> None:
        self.raw, self.flags, self.error, self.flush = raw, flags, error, raw.flush

    def fileno(self) -> int:
        return self.raw.fileno()

    def write(self, data) -> int:
        if self.error and self.flags and self.flags[-1] & direct_file._PAST_THE_CACHE:
            raise OSError(self.error, os.strerror(self.error))
        return self.raw.write(data[: len(data) // 2 + 1])


@pytest.mark.parametrize("error", [errno.EINVAL, errno.ENOSPC])
def test_a_system_that_cannot_do_without_its_cache_uses_it(tmp_path, monkeypatch, error):
    """Any other error is told."""
    flags: list[int] = []

    def note(file, command, value=0) -> int:
        if command == direct_file.fcntl.F_SETFL:
            flags.append(value)
        return 0

    monkeypatch.setattr(direct_file.fcntl, "fcntl", note)
    (written,) = pieces(BLOCK + 10)
    with (tmp_path / "file").open("wb", buffering=0) as raw:
        file = DirectFile(Picky(raw, flags, error))
        assert flags[-1] & direct_file._PAST_THE_CACHE
        if error == errno.ENOSPC:
            with pytest.raises(OSError, match="No space"):
                file.write(written)
            return
        file.write(written)
        file.finish()
    assert (tmp_path / "file").read_bytes() == written


def test_a_system_that_refuses_it_at_once_uses_its_cache(tmp_path, monkeypatch):
    """tmpfs, of an older kernel."""
    asked: list[int] = []

    def refuse(file, command, value=0) -> int:
        if command == direct_file.fcntl.F_SETFL:
            asked.append(value)
            if value & direct_file._PAST_THE_CACHE:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return 0

    monkeypatch.setattr(direct_file.fcntl, "fcntl", refuse)
    (written,) = pieces(BLOCK + 10)
    with (tmp_path / "file").open("wb", buffering=0) as raw:
        file = DirectFile(raw)
        assert asked == [direct_file._PAST_THE_CACHE]
        file.write(written)
        file.finish()
    assert (tmp_path / "file").read_bytes() == written
