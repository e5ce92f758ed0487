"""A thread beside the caller: it begins with `start`, and has ended when `close` returns."""

from __future__ import annotations

import threading

from redrive.broker.background_thread import BackgroundThread
from redrive.testing.fake_clock import PATIENCE_SECONDS


class Counter(BackgroundThread):
    """Runs until it is closed, and then has something to finish."""

    def __init__(self, *, closes_itself: bool = False) -> None:
        super().__init__("counter")
        self.closes_itself = closes_itself
        self.began = threading.Event()
        self.finished = False

    def _run(self) -> None:
        self.began.set()
        if self.closes_itself:
            self.close()
        assert self._end.wait(PATIENCE_SECONDS)
        self.finished = True


def test_close_waits_for_what_is_under_way() -> None:
    counter = Counter()
    counter.start()
    assert counter.began.wait(PATIENCE_SECONDS)
    counter.close()
    assert counter.finished
    counter.close()  # twice is no error
    assert "redrive-counter" not in {thread.name for thread in threading.enumerate()}


def test_with_statement_starts_and_closes() -> None:
    with Counter() as counter:
        assert counter.began.wait(PATIENCE_SECONDS)
    assert counter.finished


def test_thread_that_was_never_started_can_be_closed() -> None:
    counter = Counter()
    counter.close()
    assert not counter.began.is_set()


def test_thread_that_closes_itself_does_not_wait_for_itself() -> None:
    counter = Counter(closes_itself=True)
    counter.start()
    counter.close()
    assert counter.finished
