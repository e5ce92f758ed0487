"""`redrive work`: a worker for an app or a group of loops, or the workers of redrive.toml in this process."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import click

from redrive.broker.broker import Broker
from redrive.cli.common_options import StoreCommand, get_option, log_json_option, seconds_option, was_given
from redrive.cli.store_target import StoreTarget, find_target, open_place, project_config, project_file
from redrive.config import Config
from redrive.config.runtime import ConfigRuntime
from redrive.connect import TOKEN_VARIABLE
from redrive.errors import InvalidInput
from redrive.model.limits import MIB
from redrive.telemetry import events
from redrive.telemetry.metrics import serve_metrics
from redrive.worker.ipc import WorkerLaunch
from redrive.worker.signal_queue import SignalQueue
from redrive.worker.supervisor import can_supervise, supervise, work_here

_FOR_APPS = (
    "queues",
    "concurrency",
    "processes",
    "reload",
    "live",
    "watchdog_timeout",
    "memory_limit",
    "max_items_per_child",
)
"""Options that apply only to an app or a group of loops."""
_FOR_FILES = {
    "namespace": "an app says its namespace itself, as in App(namespace='blue'), and a group where its store is opened",
    "config": "an app or a group reads no config file",
}
"""Options of every command that apply only to the workers of a file, each with the reason."""


@click.command(cls=StoreCommand, short_help="Run an app, a group of loops, or the workers of redrive.toml.")
@click.argument("what", nargs=-1, metavar="[MODULE:NAME | WORKER…]")
@click.option(
    "--queue",
    "-q",
    "queues",
    multiple=True,
    metavar="NAME",
    help="A queue to work on; can be repeated. Default: all queues that the app declares.",
)
@click.option(
    "--concurrency",
    "-c",
    type=click.IntRange(1, 10_000),
    default=8,
    show_default=True,
    metavar="N",
    help="Maximum number of functions that run concurrently in threads, and of coroutines.",
)
@click.option(
    "--processes",
    "-p",
    type=click.IntRange(0, 1_000),
    default=0,
    metavar="N",
    help="Run items in N processes instead of threads: an item that kills its process affects no other item.",
)
@click.option(
    "--until-idle",
    is_flag=True,
    help="End when no item can run now. Items that wait for their time or their next retry stay in the queue.",
)
@click.option(
    "--reload",
    is_flag=True,
    help="For development: restart when a Python file below the working directory changes.",
)
@click.option("--live", is_flag=True, help="Show the running items, live, below the log.")
@seconds_option(
    "--shutdown-timeout",
    "30s",
    "Time for running items to finish after the first SIGTERM or Ctrl-C. The others are released.",
)
@seconds_option("--watchdog-timeout", "30s", "Kill and restart a worker that does not respond for this time.")
@click.option(
    "--memory-limit",
    type=click.IntRange(16),
    metavar="MIB",
    help="With --processes: memory limit of each process; a handler that exceeds it gets MemoryError.",
)
@click.option(
    "--max-items-per-child",
    type=click.IntRange(1),
    metavar="N",
    help="With --processes: replace each process after N items.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65_535),
    metavar="PORT",
    help="Serve metrics for Prometheus at /metrics on this port; 0 takes a free one.",
)
@click.option("--metrics-host", default="127.0.0.1", show_default=True, metavar="ADDRESS",
              help="Address of the metrics. The default can be reached only from this machine.")  # fmt: skip
@log_json_option
def work(what: tuple[str, ...], **options: Any) -> None:
    """Run an app, a group of loops, or the workers of redrive.toml, until it is stopped.

    `redrive work jobs:app` imports the module jobs, from the working directory or an installed package, and runs its
    App called app. `redrive work mail:group` runs the loops of a LoopGroup in the same way, on the store of their
    mailboxes; it does not take --queue, --concurrency, --processes or --until-idle. `redrive work calls:dlq` runs the
    retries of a DeadLetterQueue.

    `redrive work` runs all workers of the file redrive.toml, which run commands; `redrive work mailer` only the worker
    called mailer. The file is applied first, and again when it is edited.

    Ctrl-C or SIGTERM: leases no more items and finishes running ones. A second one stops immediately. Neither counts as
    an attempt of an item. SIGHUP restarts the worker of an app or a group, and reads the file again.

    The exit code is 0 after a stop or when idle, 1 if it had to be killed, 2 if an app or a group could not start, and
    3 if the file is invalid. With --until-idle it is 7 if the token may not work on a queue, and 4 if a queue does not
    exist.
    """
    if was_given("metrics_host") and options["metrics_port"] is None:
        raise click.UsageError("--metrics-host is for --metrics-port; omit it, or give both")
    if any(":" in each for each in what):
        _work_app(what, options)
    else:
        _work_file(what, options)


def _work_file(workers: tuple[str, ...], options: dict[str, Any]) -> None:
    """Run the workers of the file, which sets their numbers: options of an app are refused."""
    for option in _given(_FOR_APPS):
        raise click.UsageError(
            f"{option} is for the tasks of an app: name one, as in redrive work jobs:app. The workers of redrive.toml "
            f"are configured in that file"
        )
    events.configure()
    metrics = None if options["metrics_port"] is None else (options["metrics_host"], options["metrics_port"])
    sys.exit(
        work_by_file(
            workers or None,
            until_idle=options["until_idle"],
            shutdown_seconds=options["shutdown_timeout"],
            metrics=metrics,
        )
    )


def _given(names: Iterable[str]) -> list[str]:
    """Return those of these options that were typed, with their dashes."""
    return ["--queue" if name == "queues" else f"--{name.replace('_', '-')}" for name in names if was_given(name)]


def _work_app(what: tuple[str, ...], options: dict[str, Any]) -> None:
    """Run an app or another program of a module. An app determines its store, unless a URL is given."""
    for name, why in _FOR_FILES.items():
        if get_option(name) is not None:
            raise click.UsageError(f"--{name} is for workers of redrive.toml: {why}")
    memory_limit, max_items = options["memory_limit"], options["max_items_per_child"]
    if not options["processes"] and (memory_limit or max_items):
        raise click.UsageError("--memory-limit and --max-items-per-child are for processes; give --processes too")
    events.configure()
    if token := get_option("token"):
        os.environ[TOKEN_VARIABLE] = token  # the worker and its processes open the store, not this one
    launch = WorkerLaunch(
        app=_spec(what),
        queues=options["queues"],
        concurrency=options["concurrency"],
        processes=options["processes"],
        url=get_option("url"),
        until_idle=options["until_idle"],
        shutdown_timeout=options["shutdown_timeout"],
        metrics_port=options["metrics_port"],
        metrics_host=options["metrics_host"],
        memory_limit=None if memory_limit is None else memory_limit * MIB,
        max_items_per_child=max_items,
        options=(*_given((*_FOR_APPS, "until_idle")), *(["--url"] if get_option("url") is not None else [])),
    )
    reload, view = options["reload"], options["live"]
    if can_supervise():
        sys.exit(supervise(launch, watchdog_seconds=options["watchdog_timeout"], reload=reload, view=view))
    if reload or view:
        raise click.UsageError("--reload and --live need a system that can fork, and this one cannot")
    work_here(launch)


def _spec(what: tuple[str, ...]) -> str:
    """Return the one app that was named. The worker, which imports it, checks that it exists."""
    if len(what) > 1:
        raise click.UsageError(f"name one app, or workers of the file, not {' and '.join(what)}")
    module, _, attribute = what[0].partition(":")
    if not (module and attribute):
        raise click.UsageError(f"{what[0]!r} does not name an app; write module:attribute, as in jobs:app")
    return what[0]


IMPATIENCE_SECONDS = 0.5
"""A second signal within this time counts as the same one: some senders signal the process and its group."""
_log = events.logger("redrive.config")


def work_by_file(
    workers: Collection[str] | None, *, until_idle: bool, shutdown_seconds: float, metrics: tuple[str, int] | None
) -> int:
    """Run the workers of the file. Return the exit code."""
    place = find_target()
    config = _config(place)
    if place.is_memory:
        raise InvalidInput(
            "memory:// exists only in this process, so no other program could put items; name a file or server"
        )
    with open_place(place, create=True, maintenance=True) as broker, _shown(broker, metrics):
        running = ConfigRuntime(
            broker, config, workers=workers, shutdown_timeout=shutdown_seconds, metrics=metrics is not None
        )
        if until_idle:
            with _Signals() as signals:
                threading.Thread(target=signals.pass_on, args=(running,), daemon=True).start()
                running.run_until_idle()
        else:
            _run(running, shutdown_seconds)
    return 1 if running.has_failed.is_set() else 0


def _config(place: StoreTarget) -> Config:
    path = project_file()
    if path is None:
        raise click.UsageError(
            "there is no redrive.toml here or above; write one, or name an app, as in redrive work jobs:app"
        )
    return project_config(path, needs_store=place.source == str(path))


@contextlib.contextmanager
def _shown(broker: Broker, metrics: tuple[str, int] | None) -> Iterator[None]:
    """Serve metrics while this runs, if they are wanted."""
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


class _Signals(SignalQueue):
    """The signals for workers of the file."""

    def __init__(self) -> None:
        super().__init__(signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        self._stopped_at: float | None = None

    def handle(self, running: ConfigRuntime, seconds: float | None = None, wait: float = 0.0) -> bool:
        """Handle the signals that arrived, or arrive within `wait`. Return whether the workers are to stop."""
        number = self.next(wait)
        while number is not None:
            now = time.monotonic()
            if number == signal.SIGHUP:
                running.check()
            elif self._stopped_at is None:
                self._stopped_at = now
                _log.info("stopping", timeout=seconds, hint="again to stop immediately")
                running.request_stop()
            elif now - self._stopped_at >= IMPATIENCE_SECONDS:
                _log.info("stopping_now")
                running.stop_now()
            number = self.next()
        return self._stopped_at is not None

    def pass_on(self, running: ConfigRuntime) -> None:
        """Handle signals without end, in a thread."""
        while True:
            self.handle(running, wait=1.0)


def _run(running: ConfigRuntime, seconds: float) -> None:
    """Run until a signal arrives, or a worker fails."""
    with _Signals() as signals:
        running.start()
        while not running.has_failed.is_set() and not signals.handle(running, seconds, wait=0.5):
            pass
        # `stop` waits for commands, and a second signal has to be handled during that time.
        stopping = threading.Thread(target=running.stop)
        stopping.start()
        while stopping.is_alive():
            signals.handle(running, seconds, wait=0.1)
        stopping.join()
