"""Protocol buffer messages, read and written without their schema
(https://protobuf.dev/programming-guides/encoding)."""

from collections.abc import Iterator
from typing import Any

_FIXED = {1: 8, 5: 4}
"""Wire type -> bytes of its values, of the types with a fixed length."""
_VARINT, _BYTES = 0, 2


def fields(data: Any, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """(field number, first byte of its content, last byte + 1) of each entry of the message at data[start:stop]; of an
    entry that is an integer (varint), (field number, its value, 0). Raises ValueError for an unknown wire type, groups
    among them, an integer of more than ten bytes, and content beyond `stop` that is no integer; IndexError where
    `data` ends inside an integer."""
    while start < stop:
        key, start = _number(data, start)
        field, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, start = _number(data, start)
            yield field, value, 0
            continue
        if kind != _BYTES and kind not in _FIXED:
            raise ValueError(f"no message: wire type {kind} at byte {start}")
        length, start = (_FIXED[kind], start) if kind in _FIXED else _number(data, start)
        if start + length > stop:
            raise ValueError(f"no message: {length} bytes at byte {start} of {stop}")
        yield field, start, start + length
        start += length


def _number(data: Any, start: int) -> tuple[int, int]:
    """(value, position behind it) of the varint that starts at a position: seven bits a byte, the lowest first."""
    value = 0
    for shift in range(0, 70, 7):
        byte = int(data[start])
        start += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, start
    raise ValueError(f"no message: a number of more than ten bytes at byte {start}")


def entry(field: int, value: int | bytes) -> bytes:
    """The bytes of one field, its tag first: an integer, not below 0, as a varint, bytes with their length before
    them."""
    if isinstance(value, int):
        return _written(field << 3 | _VARINT) + _written(value)
    return opening(field, len(value)) + value


def opening(field: int, length: int) -> bytes:
    """The tag and the length that stand before the content of a field of `length` bytes."""
    return _written(field << 3 | _BYTES) + _written(length)


def _written(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])
