"""An ear on a connection: it rings for what comes in, once, and leaves nothing behind."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest
from tests.acceptance.children import run

from redrive.stores.notifications import SocketSubscriber
from redrive.testing.fake_clock import PATIENCE_SECONDS


class Bell:
    """Counts how often it rang, and can be waited for."""

    def __init__(self) -> None:
        self._rung = threading.Semaphore(0)
        self.count = 0

    def ring(self) -> None:
        self.count += 1
        self._rung.release()

    def wait(self) -> None:
        assert self._rung.acquire(timeout=PATIENCE_SECONDS), "it did not ring"


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def bell() -> Bell:
    return Bell()


@pytest.fixture
def subscriber(ends: tuple[socket.socket, socket.socket], bell: Bell) -> Iterator[SocketSubscriber]:
    subscriber = SocketSubscriber(ends[0].fileno(), bell.ring)
    yield subscriber
    subscriber.close()
    subscriber.join()


def test_it_rings_for_what_comes_in_and_reads_nothing(
    ends: tuple[socket.socket, socket.socket], subscriber: SocketSubscriber, bell: Bell
) -> None:
    ours, theirs = ends
    for word in (b"one", b"two"):
        theirs.send(word)
        bell.wait()
        assert ours.recv(10) == word
        subscriber.resume()
    assert bell.count == 2


def test_it_rings_once_until_what_came_in_was_read(
    ends: tuple[socket.socket, socket.socket], subscriber: SocketSubscriber, bell: Bell
) -> None:
    ours, theirs = ends
    subscriber.resume()  # somebody looked before anything came
    theirs.send(b"one")
    bell.wait()
    theirs.send(b"two")
    assert ours.recv(10) == b"onetwo"
    subscriber.resume()
    theirs.send(b"three")
    bell.wait()
    assert bell.count == 2


def test_it_rings_again_where_not_all_was_read(
    ends: tuple[socket.socket, socket.socket], subscriber: SocketSubscriber, bell: Bell
) -> None:
    ours, theirs = ends
    theirs.send(b"one")
    bell.wait()
    assert ours.recv(1) == b"o"
    subscriber.resume()
    bell.wait()


def test_it_rings_when_the_connection_is_lost(
    ends: tuple[socket.socket, socket.socket], subscriber: SocketSubscriber, bell: Bell
) -> None:
    ends[1].close()
    bell.wait()
    subscriber.resume()
    bell.wait()


def test_it_is_not_disturbed_when_its_owner_closes_the_connection(
    ends: tuple[socket.socket, socket.socket], subscriber: SocketSubscriber, bell: Bell
) -> None:
    ours, theirs = ends
    number = ours.fileno()
    ours.close()
    with open(os.devnull) as other:
        assert other.fileno() == number  # the number is somebody else's now
        theirs.send(b"one")
        bell.wait()


@pytest.mark.parametrize("rung", [False, True])
def test_closed_one_leaves_no_thread_and_no_file_open(
    ends: tuple[socket.socket, socket.socket], bell: Bell, rung: bool
) -> None:
    before = len(os.listdir("/dev/fd"))
    subscriber = SocketSubscriber(ends[0].fileno(), bell.ring)
    if rung:
        ends[1].send(b"one")
        bell.wait()
    subscriber.close()
    subscriber.join()
    subscriber.close()
    assert len(os.listdir("/dev/fd")) == before
    assert "redrive-subscriber" not in {thread.name for thread in threading.enumerate()}


def test_forked_child_keeps_nothing_of_it(
    ends: tuple[socket.socket, socket.socket], subscriber: SocketSubscriber, bell: Bell
) -> None:
    ours, theirs = ends
    with_ear = len(os.listdir("/dev/fd"))
    said = run(lambda say: say(str(len(os.listdir("/dev/fd"))).encode())).said
    assert int(said) == with_ear + 1 - 3  # the pipe on which it says so, and none of the three sockets
    theirs.send(b"one")
    bell.wait()
    assert ours.recv(10) == b"one"
