"""Messages between ranks while they meet: JSON behind its length, over a stream socket."""

import hmac
import json
import socket
import struct
from typing import Any

LARGEST_MESSAGE = 4 << 20
_LENGTH = struct.Struct("<I")


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    """Send a message as JSON behind its length. Raises OSError if the socket does, TimeoutError after its time-out."""
    raw = json.dumps(message).encode()
    connection.sendall(_LENGTH.pack(len(raw)) + raw)


def receive(connection: socket.socket) -> dict[str, Any]:
    """The next message: a dict if `send` sent it, else any JSON value. Raises OSError if the connection ended or
    nothing came within the socket's time-out, ValueError for more than 4 MiB, and for what is no JSON or is nested
    deeper than Python reads."""
    (size,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    if size > LARGEST_MESSAGE:
        raise ValueError(f"a message of {size} bytes is not ours")
    raw = _exactly(connection, size)
    try:
        return json.loads(raw)
    except RecursionError as error:
        raise ValueError("a message that is nested so deep is not ours") from error


def _exactly(connection: socket.socket, size: int) -> bytes:
    raw = bytearray()
    while len(raw) < size:
        part = connection.recv(min(1 << 16, size - len(raw)))
        if not part:
            raise ConnectionResetError("the connection ended")
        raw += part
    return bytes(raw)


def same_secret(one: object, other: str) -> bool:
    """Whether `str(one)` equals `other`, tested in a time that does not depend on where they differ."""
    return hmac.compare_digest(str(one).encode(), other.encode())
