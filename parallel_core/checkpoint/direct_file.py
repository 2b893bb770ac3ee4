"""Writing a file past the system's page cache.

A saved checkpoint is rarely read again soon, and to fill the cache with it takes a core's time and memory.
"""

import errno
import fcntl
import mmap
import os
from typing import Any, BinaryIO

import numpy as np

BLOCK = 4 << 20
"""Bytes that are written at once: few enough that they are still in the processor's cache after their checksum."""
_PAST_THE_CACHE = getattr(os, "O_DIRECT", 0)


class DirectFile:
    """An open, unbuffered file to which bytes of any number are appended, past the page cache.

    They go through one block of memory that begins at a page, as the system wants it. Where the system or the file
    system cannot write past the cache, and for the last bytes, which fill no block, the cache is used.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._filled = file, 0
        self._block = np.frombuffer(mmap.mmap(-1, BLOCK), np.uint8)
        self._flags = fcntl.fcntl(file, fcntl.F_GETFL)
        self._is_direct = self._go_past_the_cache(_PAST_THE_CACHE)

    def _go_past_the_cache(self, flag: int) -> bool:
        """Switch direct writes on (flag O_DIRECT) or off (0); whether they are on, which some file systems refuse."""
        try:
            fcntl.fcntl(self._file, fcntl.F_SETFL, self._flags | flag)
        except OSError:  # this file system has no direct writes
            return False
        return bool(flag)

    def write(self, data: Any) -> None:
        """Append the bytes of a buffer; those that fill no block wait for a later `write`, or for `finish`."""
        rest = np.frombuffer(data, np.uint8)
        while rest.size:
            part = rest[: BLOCK - self._filled]
            self._block[self._filled : self._filled + part.size] = part
            self._filled, rest = self._filled + part.size, rest[part.size :]
            if self._filled == BLOCK:
                self._empty()

    def finish(self) -> None:
        """Write the last block, and bring the file to the disk; it stays open."""
        self._is_direct = self._go_past_the_cache(0)
        self._empty()
        self._file.flush()
        os.fsync(self._file.fileno())

    def _empty(self) -> None:
        rest, self._filled = self._block[: self._filled].data, 0
        while rest.nbytes:
            try:
                rest = rest[self._file.write(rest) :]
            except OSError as error:
                if error.errno != errno.EINVAL or not self._is_direct:
                    raise
                self._is_direct = self._go_past_the_cache(0)  # this file system accepted the flag and refuses the write
