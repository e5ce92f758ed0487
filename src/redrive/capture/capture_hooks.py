"""Hooks of a dead-letter queue: functions of the program that are called after an event of a task.

They run one after another in a separate thread, so that a slow hook delays neither a failed call nor a retry. The
thread exists only while hooks are called; it is no daemon thread, so a program waits for it before it exits.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from enum import StrEnum
from typing import Any, TypeVar
from weakref import WeakSet

from redrive.errors import InvalidInput, short_repr
from redrive.telemetry import events

MAX_WAITING = 10_000
"""The highest number of calls that wait for the thread; more are skipped."""
HOOK_SECONDS = 60.0
"""Seconds that a coroutine on the event loop of the program may take."""
_Hook = TypeVar("_Hook", bound=Callable[..., Any])
_log = events.logger("redrive.capture")
_all_hooks: WeakSet[CaptureHooks] = WeakSet()
"""The hooks of all queues of this process, for the reset after a fork."""


class TaskEvent(StrEnum):
    """An event of a captured task."""

    CAPTURED = "captured"
    RETRIED = "retried"
    """A retry ended, successful or not."""
    SUCCEEDED = "succeeded"
    EXHAUSTED = "exhausted"
    ARCHIVED = "archived"
    RESTORED = "restored"


ALERT = "alert"
"""The event of hooks that are called with an alert."""


class CaptureHooks:
    """The hooks of one queue, and the thread that calls them."""

    def __init__(self, queue: str) -> None:
        self._queue = queue
        self._hooks: dict[str, list[tuple[Callable[..., Any], asyncio.AbstractEventLoop | None]]] = defaultdict(list)
        self.start_over()
        _all_hooks.add(self)

    def start_over(self) -> None:
        """Discard the calls that wait. A forked process has no thread; the parent process makes these calls."""
        self._waiting: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._is_running = False
        self._thread: int | None = None

    def add(self, event: str, hook: _Hook) -> _Hook:
        """Add a function to call after an event. A coroutine function runs on the current event loop, if one runs."""
        if not callable(hook):
            raise InvalidInput(f"a hook is a function of a task or an alert, not {short_repr(hook, 60)}")
        self._hooks[event].append((hook, running_loop()))
        return hook

    def has(self, event: str) -> bool:
        """Return whether a function is called after this event."""
        return event in self._hooks

    def post(self, work: Callable[[], None]) -> bool:
        """Queue this call for the thread. Returns False if the limit of waiting calls is reached, and it is skipped."""
        with self._changed:
            if len(self._waiting) >= MAX_WAITING:
                _log.error("hook_skipped", queue=self._queue, waiting=len(self._waiting))
                return False
            self._waiting.append(work)
            if self._is_running:
                return True
            self._is_running = True
        try:
            threading.Thread(target=self._run, name="redrive-capture-hooks").start()
        except RuntimeError:  # the interpreter shuts down, and no thread can be started any more
            self._run()
        return True

    def call(self, event: str, value: Any) -> None:
        """Call the hooks of an event. Their errors are logged. Runs in the thread of the hooks."""
        for hook, loop in self._hooks.get(event, ()):
            try:
                _call(hook, loop, value)
            except BaseException:  # also SystemExit: the other hooks are still called
                name = getattr(hook, "__qualname__", type(hook).__name__)
                _log.exception("capture_hook_failed", hook=name, queue=self._queue, on=event)

    def wait(self, timeout: float) -> bool:
        """Wait until all calls are made, and return whether they are. From a hook, return False immediately."""
        with self._changed:
            if self._thread == threading.get_ident():
                return False
            return self._changed.wait_for(lambda: not self._is_running, timeout)

    def _run(self) -> None:
        self._thread = threading.get_ident()
        while True:
            with self._changed:
                if not self._waiting:
                    self._is_running, self._thread = False, None
                    self._changed.notify_all()
                    return
                work = self._waiting.popleft()
            try:
                work()
            except BaseException:
                _log.exception("capture_hook_failed", hook=None, queue=self._queue, on=None)


def _call(hook: Callable[..., Any], loop: asyncio.AbstractEventLoop | None, value: Any) -> None:
    called = hook(value)
    if not inspect.iscoroutine(called):
        return
    if loop is None or not loop.is_running():
        asyncio.run(called)
    else:
        asyncio.run_coroutine_threadsafe(called, loop).result(HOOK_SECONDS)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread, if any."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _after_fork_in_child() -> None:
    for hooks in tuple(_all_hooks):
        hooks.start_over()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
