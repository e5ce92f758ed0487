"""Frames: values that pass between processes, whole and in order, whatever the socket does to them."""

import os
import socket
import struct
from collections.abc import Iterator

import pytest

from redrive import Failure, NewItem, Result
from redrive.broker.worker_session import Buried, Completed, Failed, Lost, Outcome, Released, Returned
from redrive.clock import Instant
from redrive.contract.item_calls import Put
from redrive.model.classify import ErrorClass, ErrorRule
from redrive.model.death import DeadReason
from redrive.model.ids import ItemId, Token
from redrive.model.item import Lease, Overrides
from redrive.model.judge import Dead
from redrive.worker import ipc
from redrive.worker.execution import HandlerSettings
from redrive.worker.ipc import (
    Channel,
    ChildExited,
    Delivery,
    Fork,
    Forked,
    FrameInvalid,
    FromChild,
    FromZygote,
    JobReport,
    Kill,
    Stop,
    ToChild,
    ToZygote,
    ZygoteReady,
)
from redrive.worker.process_exit import Exit

TOKEN = Token("2" * 48)
Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    left, right = socket.socketpair()
    with left, right:
        yield left, right


def lease(payload: bytes = b"{}") -> Lease:
    return Lease(
        id=ItemId("1" * 32), token=TOKEN, queue="jobs", payload=payload, content_type="application/json",
        headers={"task": "send", "schlüssel": "ü"}, priority=5, put_at=Instant(1), deliveries=2, attempts=1,
        failures=0, losses=1, redrives=0, leased_at=Instant(2), deadline=Instant(3), first_leased_at=Instant(2),
        expire_deadline=None, overrides=Overrides(max_losses=7), worker="w",
    )  # fmt: skip


FAILURE = Failure("ValueError", "no", error_class=ErrorClass.VALIDATION, fingerprint="f" * 16, bases=("Exception",))
ENDS: list[Outcome] = [
    Completed(),
    Completed(Result(b"\x00\xff", "application/octet-stream"), keep=60_000_000),
    Completed(
        puts=(
            Put("next", (NewItem(b"1", "application/json", headers={"task": "t"}, delay=5),)),
            Put("dead", (NewItem(b"", "text/plain", failure=FAILURE, verdict=Dead(DeadReason.POLICY), version=3),)),
        )
    ),
    Failed(FAILURE, after=1_000),
    Released(5, "later"),
    Returned("never ran"),
    Buried(DeadReason.UNDECODABLE, failure=FAILURE),
    Lost(FAILURE),
]


@pytest.mark.parametrize("end", ENDS, ids=lambda end: type(end).__name__)
def test_every_way_to_end_comes_back_as_it_was(pair: Pair, end: Outcome) -> None:
    Channel(pair[0], FromChild).send(JobReport(TOKEN, end, 0.5))
    assert Channel(pair[1], FromChild).receive() == [JobReport(TOKEN, end, 0.5)]


def test_lease_comes_back_as_it_was(pair: Pair) -> None:
    handling = HandlerSettings((ErrorRule(ErrorClass.NETWORK, type="Timeout"),), keeps_completed=True)
    sent = Delivery(lease(b"\x00\xff"), handling)
    Channel(pair[0], ToChild).send(sent)
    assert Channel(pair[1], ToChild).wait() == sent


def test_frames_stay_whole_however_they_are_cut(pair: Pair) -> None:
    left, right = pair
    Channel(left, FromZygote).send(ZygoteReady())
    Channel(left, FromZygote).send(Forked(1, 2))
    Channel(left, FromZygote).send(ChildExited(2, Exit(None, 11, 5, Instant(6))))
    data = right.recv(4096)
    hears: Channel[FromZygote] = Channel(right, FromZygote)
    heard: list[FromZygote] = []
    for byte in data:
        left.send(bytes([byte]))
        heard += hears.receive()
    assert heard == [ZygoteReady(), Forked(1, 2), ChildExited(2, Exit(None, 11, 5, Instant(6)))]


def test_what_does_not_fit_is_kept_until_there_is_room(pair: Pair) -> None:
    says: Channel[FromChild] = Channel(pair[0], FromChild)
    hears: Channel[ToChild] = Channel(pair[1], ToChild)
    large = Delivery(lease(os.urandom(4 << 20)), HandlerSettings())
    says.send(large)
    assert says.is_full
    heard: list[ToChild] = []
    while says.is_full or not heard:
        heard += hears.receive()
        says.flush()
    assert heard == [large]


def test_end_of_the_other_side_is_told_after_what_it_said(pair: Pair) -> None:
    Channel(pair[0], ToChild).send(Stop())
    hears: Channel[ToChild] = Channel(pair[1], ToChild)
    assert hears.receive() == [Stop()]
    assert not hears.has_ended
    pair[0].close()
    assert hears.receive() == []
    assert hears.has_ended
    assert hears.wait() is None


def test_sending_to_nobody_raises(pair: Pair) -> None:
    pair[1].close()
    with pytest.raises(OSError, match="Broken pipe"):
        Channel(pair[0], ToChild).send(Stop())


class _Full:
    """An encoder for which there is not enough memory, once it has begun."""

    def encode_into(self, frame: object, data: bytearray, offset: int) -> None:
        data += b"begun"
        raise MemoryError


def test_frame_for_which_there_is_no_memory_does_not_reach_the_next_one(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    says: Channel[FromChild] = Channel(pair[0], FromChild)
    with monkeypatch.context() as patched:
        patched.setattr(ipc, "_encoder", _Full())
        with pytest.raises(MemoryError):
            says.send(JobReport(TOKEN, Returned("x"), 0.5), wait=True)
    says.send(JobReport(TOKEN, Returned(), 0.5), wait=True)
    assert Channel(pair[1], FromChild).receive() == [JobReport(TOKEN, Returned(), 0.5)]


def test_whether_there_is_more_is_known_without_receiving_it(pair: Pair) -> None:
    hears: Channel[ToChild] = Channel(pair[1], ToChild)
    assert not hears.has_more()
    Channel(pair[0], ToChild).send(Stop())
    assert hears.has_more()
    assert hears.wait() == Stop()
    assert not hears.has_more()
    pair[0].close()
    assert hears.has_more()


@pytest.mark.parametrize("rubbish", [b"\x01\x00\x00\x00\xc1", struct.pack("<I", 2**31), b"\x01\x00\x00\x00\x05"])
def test_rubbish_is_noticed(pair: Pair, rubbish: bytes) -> None:
    pair[0].send(rubbish)
    with pytest.raises(FrameInvalid):
        Channel(pair[1], FromChild).receive()


def test_what_came_before_rubbish_is_kept_and_what_comes_after_is_dropped(pair: Pair) -> None:
    says: Channel[FromChild] = Channel(pair[0], FromChild)
    hears: Channel[FromChild] = Channel(pair[1], FromChild)
    says.send(JobReport(TOKEN, Completed(), 0.5))
    pair[0].send(b"\x01\x00\x00\x00\xc1")
    says.send(JobReport(TOKEN, Completed(), 0.7))
    with pytest.raises(FrameInvalid) as raised:
        hears.receive()
    assert raised.value.before == [JobReport(TOKEN, Completed(), 0.5)]
    says.send(JobReport(TOKEN, Completed(), 0.9))
    assert hears.receive() == []
    pair[0].close()
    assert hears.receive() == []
    assert hears.has_ended


def test_socket_goes_along_with_its_frame(pair: Pair) -> None:
    says: Channel[FromZygote] = Channel(pair[0], FromZygote)
    hears: Channel[ToZygote] = Channel(pair[1], ToZygote)
    first, one = socket.socketpair()
    second, two = socket.socketpair()
    with first, second:
        with one, two:
            says.send(Kill(7))
            says.send_with(Fork(1, 0), one)
            says.send_with(Fork(2, 0), two)
        frames: list[ToZygote] = []
        descriptors: list[int] = []
        while len(frames) < 3:
            more, others = hears.receive_with()
            frames += more
            descriptors += others
        assert frames == [Kill(7), Fork(1, 0), Fork(2, 0)]
        for mine, descriptor in zip((first, second), descriptors, strict=True):
            with socket.socket(fileno=descriptor) as theirs:
                mine.send(b"x")
                assert theirs.recv(1) == b"x"
