"""Signals at every line of the thread that waits for them."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

import pytest
from tests.until import until

from redrive.worker import thread_runner
from redrive.worker.signal_queue import SignalQueue


def test_signal_at_any_line_of_the_thread_that_waits_is_recorded() -> None:
    struck = 0

    def strike(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal struck
        if event == "line":
            struck += 1
            sys.settrace(None)  # the handler itself is not traced
            signal.raise_signal(signal.SIGUSR2)
            sys.settrace(strike)
        return strike

    found: list[int | None] = []
    with SignalQueue(signal.SIGUSR2) as signals:
        before = sys.gettrace()
        sys.settrace(strike)
        try:
            for wait in (0.0, 0.001, 0.0):
                found.append(signals.next(wait))
        finally:
            sys.settrace(before)
        while (number := signals.next()) is not None:
            found.append(number)
    assert struck >= 3
    assert found.count(signal.SIGUSR2) == struck


def test_signal_ends_a_wait() -> None:
    with SignalQueue(signal.SIGUSR2) as signals:
        threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGUSR2)).start()
        assert signals.next(60) == signal.SIGUSR2
        threading.Timer(0.01, signals.wake).start()
        assert signals.next(60) == 0
        assert signals.next() is None


def test_handlers_are_those_of_before_in_the_end_and_other_threads_install_none() -> None:
    before = signal.getsignal(signal.SIGUSR2)
    with SignalQueue(signal.SIGUSR2):
        assert signal.getsignal(signal.SIGUSR2) != before
    assert signal.getsignal(signal.SIGUSR2) == before
    seen: list[Any] = []

    def elsewhere() -> None:
        with SignalQueue(signal.SIGUSR2):
            seen.append(signal.getsignal(signal.SIGUSR2))

    threading.Thread(target=elsewhere).start()
    until(lambda: seen)
    assert seen == [before]


@pytest.mark.timeout(60)
def test_time_limit_that_a_finalizer_swallowed_is_raised_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Garbage collection may run a finalizer in the loop that waits for the exception, and the exception ends there."""
    raise_in, raised = thread_runner._raise_in, 0

    def swallowed(thread: int, error: type[BaseException]) -> None:
        nonlocal raised
        raised += 1
        if raised > 1:
            raise_in(thread, error)

    monkeypatch.setattr(thread_runner, "_raise_in", swallowed)
    with pytest.raises(thread_runner.TimeLimitExceeded):
        thread_runner.raise_here(thread_runner.TimeLimitExceeded)
    assert raised == 2
