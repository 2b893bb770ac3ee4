"""`DirectFile`, which writes past the page cache (O_DIRECT): the file has every byte, for pieces of any length and on
systems that refuse it."""

import errno
import os

import numpy as np
import pytest

from parallel_core.checkpoint import direct_file
from parallel_core.checkpoint.direct_file import BLOCK, DirectFile


def pieces(*lengths: int) -> list[bytes]:
    """Random bytes of the given lengths."""
    return [np.random.default_rng(length).integers(0, 256, length, np.uint8).tobytes() for length in lengths]


@pytest.mark.parametrize("lengths", [(0,), (1,), (BLOCK,), (BLOCK - 1, 2), (7, BLOCK, 3 * BLOCK, 5), (BLOCK,) * 2])
def test_what_is_written_is_in_the_file(tmp_path, lengths):
    """The file equals the joined pieces, whether these fill blocks, less, or more."""
    written = pieces(*lengths)
    with (tmp_path / "file").open("wb", buffering=0) as raw:
        file = DirectFile(raw)
        for piece in written:
            file.write(piece)
        file.finish()
    assert (tmp_path / "file").read_bytes() == b"".join(written)


class Picky:
    """A raw file that accepts O_DIRECT and then refuses each write with it (`error`), and writes half of the bytes it
    is given, rounded up."""

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
    """A write that fails with EINVAL under O_DIRECT is repeated through the cache; another error, such as a full disk,
    is raised."""
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
    """A system that refuses the flag O_DIRECT itself, as tmpfs of an older kernel, gets the bytes through its cache."""
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
