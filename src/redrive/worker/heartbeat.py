"""Liveness of a worker: a heartbeat that shows that the process runs Python, and its registration in the store."""

from __future__ import annotations

import contextlib
import os
import platform
import socket
from collections.abc import Callable, Sequence
from importlib import metadata

import msgspec

from redrive.broker.background_thread import BackgroundThread
from redrive.broker.broker import Broker
from redrive.broker.flow import run
from redrive.broker.flows import registrations
from redrive.clock import at_intervals
from redrive.errors import Closed, RedriveError
from redrive.model.duration import SECOND
from redrive.model.worker_info import WorkerInfo
from redrive.telemetry import events

BEAT_SECONDS = 0.5
"""Seconds between two heartbeats."""


class Heartbeat(BackgroundThread):
    """A heartbeat in a separate thread, which never waits for anything else."""

    def __init__(self, beat: Callable[[], None]) -> None:
        super().__init__("heartbeat")
        self._beat = beat

    def _run(self) -> None:
        self._beat()
        while not self._end.wait(BEAT_SECONDS):
            self._beat()


EVERY = 10 * SECOND
"""Time between two announcements: two may fail before the worker is taken for gone."""
_log = events.logger("redrive.worker")


class WorkerRegistration(BackgroundThread):
    """The registration of one worker, renewed in a separate thread from `start` to `close`.

    A failed announcement is repeated at the next one, and does not affect the work.
    """

    def __init__(
        self,
        broker: Broker,
        name: str,
        queues: Sequence[str],
        handlers: Sequence[str] | None,
        concurrency: int,
        *,
        running: Callable[[], int] = lambda: 0,
    ) -> None:
        super().__init__("presence")
        self._core = broker.core
        self._running = running
        self._info = WorkerInfo(
            name=name,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=tuple(queues),
            handlers=None if handlers is None else tuple(handlers),
            versions={"redrive": metadata.version("redrive"), "python": platform.python_version()},
            started_at=self._core.clock.now(),
            concurrency=concurrency,
        )

    def announce(self) -> None:
        """Register the worker once. A failure is logged."""
        info = msgspec.structs.replace(self._info, running=self._running())
        try:
            run(self._core, registrations.register_worker(info))
        except Closed:
            self._end.set()
        except RedriveError as error:
            _log.warning("worker_registration_failed", worker=info.name, error=str(error))

    def close(self) -> None:
        """Stop, and remove the registration immediately."""
        super().close()
        with contextlib.suppress(RedriveError):  # then the registration expires
            run(self._core, registrations.unregister_worker(self._info.name))

    def _run(self) -> None:
        for _ in at_intervals(self._core.clock, EVERY, self._end):
            self.announce()
