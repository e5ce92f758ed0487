"""The worker process of a supervisor.

    python -m redrive.worker.worker_process DESCRIPTOR

It takes its launch, and the request to stop, from the supervisor only: a service manager may signal every process of a
service, and a second signal must not count as a second request. If the supervisor is gone, it stops as if requested.
"""

from __future__ import annotations

import contextlib
import gc
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from redrive.broker.broker import Broker
from redrive.broker.worker_session import RETRYABLE_STORE_ERRORS
from redrive.errors import AccessError, Closed, InvalidInput, NotFound, RedriveError
from redrive.model.text import visible
from redrive.task.app import App
from redrive.telemetry import events
from redrive.telemetry.metrics import serve_metrics
from redrive.worker.app_loader import load_program
from redrive.worker.crash_recovery import settle_orphans
from redrive.worker.in_flight import InFlightLog
from redrive.worker.ipc import Channel, Stop, ToWorker, WorkerLaunch
from redrive.worker.program import RunnableWorker, WorkerProgram
from redrive.worker.worker import Worker

EXIT_BAD_APP = 78
"""The exit code of a worker that could not start because its app or its options are invalid."""
EXIT_UNAUTHORIZED = 77
"""The exit code of a worker that the server does not allow to start, or to lease."""
EXIT_NO_QUEUE = 66
"""The exit code of a worker whose queue does not exist."""
UNAVAILABLE = 69
"""The exit code of a worker whose store could not be opened. It is started again."""
_log = events.logger("redrive.worker")


def main() -> int:
    """Run `python -m redrive.worker.worker_process`, and return the exit code."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _ignore_signal)
    channel: Channel[ToWorker] = Channel(socket.socket(fileno=int(sys.argv[1])), ToWorker)
    launch = channel.wait()
    if not isinstance(launch, WorkerLaunch):
        return EXIT_BAD_APP
    events.configure()
    listener = Listener(channel)
    try:
        with opened_program(launch) as program:
            _check(program, launch)
            _settle(program, launch.orphans_of)
            return _work(program, launch, listener) if launch.in_flight_log else 0
    except AccessError as error:
        return _unfit(str(error), EXIT_UNAUTHORIZED)
    except NotFound as error:
        return _unfit(str(error), EXIT_NO_QUEUE)
    except (InvalidInput, Closed) as error:
        return _unfit(str(error))
    except RETRYABLE_STORE_ERRORS as error:  # before any work: a worker that works waits for its store
        _log.error("store_not_opened", error=str(error))
        return UNAVAILABLE


@contextlib.contextmanager
def opened_program(launch: WorkerLaunch) -> Iterator[WorkerProgram]:
    """Import and yield the program that the launch names. Its brokers are closed at the end."""
    try:
        found = load_program(launch.app, launch.url)
    except (AccessError, NotFound, InvalidInput, *RETRYABLE_STORE_ERRORS):
        raise
    except RedriveError as error:
        raise InvalidInput(str(error)) from error
    except Exception:
        traceback.print_exc()
        raise InvalidInput(f"{launch.app} cannot be imported; see above") from None
    program = AppProgram(found) if isinstance(found, App) else found
    with contextlib.ExitStack() as stack:
        for broker in program.brokers:
            stack.enter_context(broker)
        yield program


def _check(program: WorkerProgram, launch: WorkerLaunch) -> None:
    """Raise InvalidInput if the stores are in the memory of this process: no other process could put items to them."""
    if all(broker.durability().level == "none" for broker in program.brokers):
        raise InvalidInput(
            f"{launch.app} runs on memory://, which no other process can put to; {program.CHANGE_OF_STORE}"
        )


def _work(program: WorkerProgram, launch: WorkerLaunch, listener: Listener) -> int:
    in_flight_log = InFlightLog(Path(launch.in_flight_log))
    worker = program.make_worker(launch, in_flight_log)
    listener.attach(worker)
    try:
        with serving_metrics(program.brokers, launch):
            gc.freeze()  # the collector then skips what was imported, which stays
            worker.run(until_idle=launch.until_idle)
    except (AccessError, NotFound, InvalidInput):
        if worker.has_settled_all:  # it was refused at the end, and holds no leases
            in_flight_log.finish(True)
        raise
    in_flight_log.finish(worker.has_settled_all)
    return 0


@contextlib.contextmanager
def serving_metrics(brokers: Sequence[Broker], launch: WorkerLaunch) -> Iterator[None]:
    """Serve metrics within this, if the launch asks for it."""
    if launch.metrics_port is None:
        yield
        return
    try:
        server = serve_metrics([broker.metrics for broker in brokers], launch.metrics_port, launch.metrics_host)
    except OSError as error:
        where = f"{launch.metrics_host}:{launch.metrics_port}"
        raise InvalidInput(f"metrics cannot be shown on {where}: {error}") from error
    try:
        yield
    finally:
        server.close()


def _unfit(problem: str, code: int = EXIT_BAD_APP) -> int:
    print(visible(f"redrive: {problem}", "\n"), file=sys.stderr)
    return code


class AppProgram(WorkerProgram):
    """An app, as a program that `redrive work` runs."""

    CHANGE_OF_STORE = "name a file or a server with --url"

    def __init__(self, app: App) -> None:
        self._app = app

    @property
    def brokers(self) -> Sequence[Broker]:
        """The broker of the app, opened if need be."""
        return (self._app.broker,)

    def make_worker(self, launch: WorkerLaunch, in_flight_log: InFlightLog | None) -> Worker:
        """Return a worker for its tasks."""
        return Worker(
            self._app,
            queues=launch.queues or None,
            concurrency=launch.concurrency,
            processes=launch.processes,
            spec=launch.app,
            memory_limit=launch.memory_limit,
            max_items_per_child=launch.max_items_per_child,
            shutdown_timeout=launch.shutdown_timeout,
            name=None if in_flight_log is None else in_flight_log.worker,
            in_flight_log=in_flight_log,
            metrics=launch.metrics_port is not None,
        )


class Listener:
    """The receiver of requests to stop, at any time. It passes them on to the worker once that exists."""

    def __init__(self, channel: Channel[ToWorker]) -> None:
        self._channel = channel
        self._worker: RunnableWorker | None = None
        self._told: Stop | None = None
        self._lock = threading.Lock()
        threading.Thread(target=self._listen, name="redrive-supervisor", daemon=True).start()

    def attach(self, worker: RunnableWorker) -> None:
        """Set the worker to stop, and stop it if a request has come before."""
        with self._lock:
            self._worker = worker
            if self._told is not None:
                worker.stop(at_once=self._told.at_once)

    def _listen(self) -> None:
        while isinstance(frame := self._channel.wait(), Stop):
            self._stop(frame)
        if self._told is None:
            self._stop(Stop())  # the supervisor is gone

    def _stop(self, stop: Stop) -> None:
        with self._lock:
            if self._told is not None and not stop.at_once:
                return
            self._told = stop
            if self._worker is not None:
                self._worker.stop(at_once=stop.at_once)


def _settle(program: WorkerProgram, left: tuple[str, ...]) -> None:
    for path in map(Path, left):
        try:
            in_flight_log = InFlightLog(path)
            for broker in program.brokers:
                settle_orphans(broker, in_flight_log)
            in_flight_log.remove()
        except (RedriveError, OSError) as error:
            _log.warning("orphans_not_settled", error=str(error))


def _ignore_signal(number: int, frame: object) -> None:
    """Do nothing: the supervisor decides when a worker stops."""


if __name__ == "__main__":
    sys.exit(main())
