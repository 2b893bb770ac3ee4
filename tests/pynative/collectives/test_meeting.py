"""What may come to a port or socket at which ranks meet, or over a connection between hosts, and is none of theirs."""

import contextlib
import errno
import json
import os
import socket
import struct
import time
from collections.abc import Iterator
from unittest.mock import patch

import pytest

from pynative.collectives import PeerLate
from pynative.collectives.meeting import hosts, rendezvous
from pynative.collectives.meeting.address import Address
from pynative.collectives.wire.arena import Arena, ChannelLayout
from pynative.collectives.wire.network import Network

MEMBER = {"rank": 1, "host": "h", "ip": "127.0.0.1", "port": 7, "pid": 8}
STRANGERS = {
    "nested": "[" * 100_000,
    "infinite": json.dumps({"world_size": float("inf"), "member": MEMBER, "secret": "", "rank": 1e999, "token": "t"}),
    "a list": "[]",
    "no number": json.dumps(
        {"world_size": 2, "member": MEMBER | {"rank": [1]}, "secret": "", "rank": "x", "token": "t"}
    ),
    "other fields": json.dumps({"world_size": 2, "member": {"rank": 1}, "secret": "", "token": "t"}),
}


@contextlib.contextmanager
def said(text: str) -> Iterator[socket.socket]:
    """A connection over which this text came behind its length."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(struct.pack("<I", len(text)) + text.encode())
        yield ours


@pytest.mark.parametrize("text", STRANGERS.values(), ids=STRANGERS)
def test_a_stranger_is_turned_away(text):
    """A message that describes no rank gives None, or -1, and no error of rank 0, whatever JSON it is."""
    for reads, nobody in ((hosts._hello, None), (lambda one: hosts._rank_of(one, "t"), -1)):
        with said(text) as connection:
            assert reads(connection) == nobody


def test_a_rank_is_welcome():
    """The message of a rank gives the world size that it believes in, and the rank."""
    with said(json.dumps({"world_size": 2, "member": MEMBER, "secret": ""})) as connection:
        assert hosts._hello(connection) == (2, hosts.Member(**MEMBER))


def test_a_host_that_is_not_up_yet_is_tried_again():
    """EHOSTUNREACH, as while the host of rank 0 starts, ends no meeting before the time-out; ENETUNREACH does at
    once."""
    connected, errors = object(), [OSError(errno.EHOSTUNREACH, "no route"), OSError(errno.ENETUNREACH, "no network")]
    address = Address(1, 2, "tcp://192.0.2.1:8848", 5.0)
    with patch("socket.create_connection", side_effect=[errors[0], connected]):
        assert hosts._reach(("192.0.2.1", 8848), address, time.monotonic() + 5) is connected
    with patch("socket.create_connection", side_effect=errors), pytest.raises(ValueError, match="has no way to it"):
        hosts._reach(("192.0.2.1", 8848), address, time.monotonic() + 5)


def test_a_name_that_no_socket_can_have_is_not_another_job():
    """Only EADDRINUSE says that another job meets under a name."""
    for name, words in ((f"{os.getpid()}-twice", "another job of yours"), ("x" * 200, "no Unix socket of that name")):
        place = rendezvous.Place(0, (0, 1), 2, name, 1.0)
        with socket.socket(socket.AF_UNIX) as first, socket.socket(socket.AF_UNIX) as second:
            with contextlib.suppress(OSError):
                first.bind(place.socket_name)
            with pytest.raises(ValueError, match=words):
                rendezvous._bind(second, place)


def test_a_silent_process_is_late():
    """A process that connects and says nothing is PeerLate at the time-out, with its process id and the missing
    ranks."""
    place = rendezvous.Place(0, (0, 1, 2), 3, f"{os.getpid()}-silent", 0.2)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:

        def connect(listener: socket.socket, place: rendezvous.Place) -> None:
            bind(listener, place)
            silent.connect(place.socket_name)

        bind = rendezvous._bind
        with patch.object(rendezvous, "_bind", connect), pytest.raises(PeerLate, match="did not say which") as caught:
            rendezvous._host(place, 0, time.monotonic() + 0.2)
    assert caught.value.ranks == (1, 2) and f"process {os.getpid()} came" in str(caught.value)


@pytest.mark.parametrize("sizes", [(0, 8, 8), (1 << 20, 1 << 20, 0)])
def test_a_channel_that_cannot_be_is_refused(sizes):
    """A post whose channel has no slots, or more bytes than any, is a message of no rank of ours."""
    memory = Arena.create(2)
    network = Network(Arena(memory, 0, 2), {}, 1.0)
    os.close(memory)
    with pytest.raises(ValueError, match="a channel of"):
        network.copy(1, 7, ChannelLayout(*sizes))
