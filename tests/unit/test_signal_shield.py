"""Work of the main thread that signal handlers interrupt: it is finished, and nothing of it is left behind."""

from __future__ import annotations

import random
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from types import FrameType

import pytest
from tests.until import until

from redrive.broker import signal_shield
from redrive.broker.signal_shield import claimed, shielded
from redrive.testing.fake_clock import PATIENCE_SECONDS


class Interruption(Exception):
    """What the handler raises."""


class Thing:
    """What a job gives."""


def ignore() -> None:
    """Go on."""


class Handler:
    """A signal handler, and the signal that calls it."""

    def __init__(self) -> None:
        self.handle: Callable[[], None] = ignore
        self._main = threading.get_ident()
        self._is_under_way = False

    def __call__(self, number: int, frame: object) -> None:
        self._is_under_way = False
        self.handle()

    def send(self) -> None:
        """From another thread, once the last one has arrived: handlers that interrupt each other have no end."""
        if not self._is_under_way:
            self.send_again()

    def send_again(self) -> None:
        self._is_under_way = True
        signal.pthread_kill(self._main, signal.SIGUSR1)


@pytest.fixture
def handler() -> Iterator[Handler]:
    handler = Handler()
    signal.signal(signal.SIGUSR1, handler)
    yield handler
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # one that comes late would end the process


def shields() -> int:
    return sum(thread.name == "redrive-shield" for thread in threading.enumerate())


def test_what_was_done_is_not_kept() -> None:
    thing = shielded(Thing)
    found = weakref.ref(thing)
    del thing
    until(lambda: found() is None)


def test_handler_that_has_work_done_and_then_raises_leaves_nothing_unclaimed(handler: Handler) -> None:
    unclaimed: list[str] = []
    done = threading.Event()

    def handle() -> None:
        done.wait(PATIENCE_SECONDS)
        assert shielded(lambda: "of the handler") == "of the handler"
        raise Interruption

    def work() -> str:
        handler.send()
        threading.Timer(0.02, done.set).start()  # by then, this is done
        return "of the main thread"

    handler.handle = handle
    with pytest.raises(Interruption):
        claimed(work, unclaimed.append)
    until(lambda: unclaimed == ["of the main thread"])
    until(lambda: shields() <= 1)


def test_second_interruption_as_the_main_thread_leaves_changes_nothing(handler: Handler) -> None:
    unclaimed: list[int] = []
    for nth in range(1, 5):
        left = threading.Event()

        def work(nth: int = nth, left: threading.Event = left) -> int:
            handler.send_again()
            while not left.wait(0.1):  # one that comes just before the main thread waits does not wake it
                handler.send_again()
            return nth

        strike = _strike_at(nth)  # kept: CPython uses it after it lets go of it

        def handle(strike: Callable[..., None] = strike) -> None:
            handler.handle = ignore
            sys.setprofile(strike)
            raise Interruption

        handler.handle = handle
        try:
            with pytest.raises(Interruption):
                claimed(work, unclaimed.append)
        finally:
            sys.setprofile(None)
        left.set()
    until(lambda: sorted(unclaimed) == [1, 2, 3, 4])
    shielded(Thing)
    until(lambda: shields() <= 1)


def _strike_at(nth: int) -> Callable[..., None]:
    """Raises at the n-th point of the shield, from here, where Python runs handlers."""
    points = iter(range(nth, 0, -1))

    def profile(frame: FrameType, event: str, argument: object) -> None:
        is_point = event in ("call", "c_return") and frame.f_code.co_filename == signal_shield.__file__
        if is_point and next(points, 0) == 1:
            raise Interruption

    return profile


def test_interruptions_at_any_time_leave_no_threads_behind(handler: Handler) -> None:
    """Also where they meet a thread that is being started, which each of them makes necessary."""
    dice, over = random.Random(1), threading.Event()
    armed = False

    def handle() -> None:
        nonlocal armed
        if armed:
            armed = False
            raise Interruption

    def send() -> None:
        while not over.wait(dice.random() * 0.001):
            handler.send()

    handler.handle = handle
    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    interrupted = 0
    try:
        while interrupted < 500:
            try:
                armed = True
                shielded(Thing)
                armed = False
            except Interruption:
                interrupted += 1
    finally:
        armed = False
        over.set()
        sender.join()
    shielded(Thing)
    until(lambda: shields() <= 1)
