"""The ledger: a record of each rank's call, which its peers compare with their own before they use any data.

A record travels in the header of an operation's first post. Two ranks agree if number and signature are equal, in an
all_to_all if the row counts fit, too; the call site is carried along for the message.
"""

import mmap
import os
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from parallel_core.whereabouts import Standing
from pynative.collectives.errors import CollectiveMismatch

_PACKAGE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_SIGNATURE_LIMIT = 2048
_SITE_LIMIT = 512
_HEAD = struct.Struct("<QHHH")
_sites: dict[tuple[str, object, int], str] = {}


@dataclass
class Call:
    """One rank's call of an operation of a group. On CPUs `number` counts, from 1, the group's collectives, or this
    rank's messages in the group to, or from, the same rank. `signature` (such as operation, shape, type) must be equal
    on all ranks that take part; `site` is the caller's file and line.

    `rows` are the row counts of an all_to_all, which may differ by rank: (sent to each rank, expected from each rank).
    """

    signature: str
    site: str
    number: int = 0
    rows: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())

    def packed(self) -> bytes:
        """The record as bytes, at most `record_bytes`: the number, the signature's first 2,048 bytes, the site's last
        512, all row counts."""
        signature = self.signature.encode()[:_SIGNATURE_LIMIT]
        site = self.site.encode()[-_SITE_LIMIT:]
        numbers = [*self.rows[0], *self.rows[1]]
        head = _HEAD.pack(self.number, len(signature), len(site), len(self.rows[0]))
        return head + signature + site + struct.pack(f"<{len(numbers)}q", *numbers)

    @staticmethod
    def unpacked(memory: mmap.mmap, start: int) -> "Call":
        """The call whose `packed` bytes begin at byte `start` of `memory`; signature and site are cut as `packed` cuts
        them."""
        number, signature_size, site_size, row_count = _HEAD.unpack(memory[start : start + _HEAD.size])
        start += _HEAD.size
        signature = memory[start : start + signature_size].decode(errors="replace")  # may be cut within a character
        start += signature_size
        site = memory[start : start + site_size].decode(errors="replace")
        start += site_size
        numbers = struct.unpack(f"<{2 * row_count}q", memory[start : start + 16 * row_count])
        return Call(signature, site, number, (numbers[:row_count], numbers[row_count:]))

    def agrees(self, memory: mmap.mmap, start: int) -> bool:
        """Whether the record at byte `start` of `memory` has this call's number and the first 2,048 bytes of its
        signature."""
        signature = self.signature.encode()[:_SIGNATURE_LIMIT]
        number, size, *_ = _HEAD.unpack(memory[start : start + _HEAD.size])
        start += _HEAD.size
        return bool(number == self.number) and memory[start : start + size] == signature

    def __str__(self) -> str:
        return f"{self.signature} (call {self.number}) at {self.site}"


def record_bytes(ranks: int) -> int:
    """The most bytes of a packed record in a group of so many ranks: an all_to_all's, with two row counts for each."""
    return _HEAD.size + _SIGNATURE_LIMIT + _SITE_LIMIT + 16 * ranks


class Label(NamedTuple):
    """An operation as error texts and roll calls name it; `str(label)` makes the text. ranks: the group's global
    ranks."""

    operation: str
    group: str
    ranks: tuple[int, ...]
    call: Call

    def __str__(self) -> str:
        return f"{self.operation} of group {self.group}: {self.call}"

    def standing(self, own: int, missing: Sequence[int]) -> Standing:
        """The operation as a `Standing`: on global rank `own` it needs the global ranks `missing` to go on. Its
        members are the group's ranks, for a send or a receive `own` and `missing` alone."""
        is_message = self.operation in ("send", "recv")
        members = tuple(sorted({own, *missing})) if is_message else self.ranks
        details = f"{self.call.signature} at {self.call.site}"
        return Standing(self.operation, self.group, self.call.number, details, members, tuple(missing))


def check(memory: mmap.mmap, start: int, mine: Call, my_rank: int, peer: int, group: str) -> None:
    """Compare this rank's call with the record of global rank `peer` at byte `start` of `memory`.

    Raises CollectiveMismatch, which names both calls, if number or signature (its first 2,048 bytes) differ.
    """
    if not mine.agrees(memory, start):
        raise mismatch(mine, Call.unpacked(memory, start), my_rank, peer, group)


def mismatch(mine: Call, theirs: Call, my_rank: int, peer: int, group: str, what: str = "") -> CollectiveMismatch:
    """The error that names both calls, that of the lower rank first. what: an addition to "disagree", such as " about
    rows: ..."."""
    (low, low_call), (high, high_call) = sorted([(my_rank, mine), (peer, theirs)], key=lambda pair: pair[0])
    return CollectiveMismatch(
        f"the ranks of group {group} disagree{what}: rank {low} calls {low_call}, rank {high} calls {high_call}",
        [low, high],
    )


def call_site() -> str:
    """`file:line` of the nearest calling frame outside of `collectives`; of the outermost frame if there is none."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    # Code of two files is equal if its lines are.
    where = (frame.f_code.co_filename, frame.f_code, frame.f_lasti)
    if where not in _sites:
        _sites[where] = f"{where[0]}:{frame.f_lineno}"
    return _sites[where]
