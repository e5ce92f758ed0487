"""The workers of redrive.toml, in this process, until a signal comes."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Collection, Iterator

import click

from redrive.broker.broker import Broker
from redrive.cli.connection import Place, chosen, open_place, project_config, project_file
from redrive.config import Config
from redrive.config.running import Running
from redrive.errors import InvalidInput
from redrive.telemetry import events
from redrive.telemetry.metrics import serve_metrics

IMPATIENCE_SECONDS = 0.5
"""A second signal that comes sooner is the same one: some send it to the process and to its group."""
_log = events.logger("redrive.file")


def work_by_file(
    workers: Collection[str] | None, *, until_idle: bool, shutdown_seconds: float, metrics: tuple[str, int] | None
) -> int:
    """Run the workers of the file. Gives the exit code."""
    place = chosen()
    config = _config(place)
    if place.is_memory:
        raise InvalidInput(
            "memory:// is this process's own, and nobody could put anything to it; name a file or server"
        )
    with open_place(place, create=True, lifecycle=True) as broker, _shown(broker, metrics):
        running = Running(
            broker, config, workers=workers, shutdown_timeout=shutdown_seconds, metrics=metrics is not None
        )
        if until_idle:
            with _Signals() as signals:
                threading.Thread(target=signals.pass_on, args=(running,), daemon=True).start()
                running.run_until_idle()
        else:
            _run(running, shutdown_seconds)
    return 1 if running.has_failed.is_set() else 0


def _config(place: Place) -> Config:
    path = project_file()
    if path is None:
        raise click.UsageError(
            "there is no redrive.toml here or above; write one, or name an app, as in redrive work jobs:app"
        )
    return project_config(path, needs_store=place.said_by == str(path))


@contextlib.contextmanager
def _shown(broker: Broker, metrics: tuple[str, int] | None) -> Iterator[None]:
    """Show metrics meanwhile, where that was asked for."""
    if metrics is None:
        yield
        return
    host, port = metrics
    try:
        server = serve_metrics(broker.metrics, port, host)
    except OSError as error:
        raise InvalidInput(f"metrics cannot be shown on {host}:{port}: {error}") from error
    try:
        yield
    finally:
        server.close()


class _Signals:
    """Writes down signals as they come. The work that they ask for is not done where they interrupt something."""

    def __init__(self) -> None:
        self._bell = threading.Event()
        self._heard: list[int] = []
        self._stopped_at: float | None = None

    def __enter__(self) -> _Signals:
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        self._before = {number: signal.signal(number, self._hear) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _hear(self, number: int, frame: object) -> None:
        self._heard.append(number)
        self._bell.set()

    def wait(self, seconds: float) -> None:
        """For the next one, so long at most."""
        self._bell.wait(seconds)
        self._bell.clear()

    def act(self, running: Running, seconds: float | None = None) -> bool:
        """Do what those that came ask for. Whether it is to stop."""
        while self._heard:
            number, now = self._heard.pop(0), time.monotonic()
            if number == signal.SIGHUP:
                running.look()
            elif self._stopped_at is None:
                self._stopped_at = now
                _log.info("stopping", timeout=seconds, hint="again to stop at once")
                running.ask_to_stop()
            elif now - self._stopped_at >= IMPATIENCE_SECONDS:
                _log.info("stopping_at_once")
                running.hurry()
        return self._stopped_at is not None

    def pass_on(self, running: Running) -> None:
        """In a thread, as long as the process lives."""
        while True:
            self.wait(1.0)
            self.act(running)


def _run(running: Running, seconds: float) -> None:
    """Until a signal comes, or a worker fails."""
    with _Signals() as signals:
        running.start()
        while not running.has_failed.is_set() and not signals.act(running, seconds):
            signals.wait(0.5)
        # Stopping waits for commands, and a second signal does not.
        stopping = threading.Thread(target=running.stop)
        stopping.start()
        while stopping.is_alive():
            signals.wait(0.1)
            signals.act(running, seconds)
        stopping.join()
