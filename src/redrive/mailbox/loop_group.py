"""`LoopGroup`: several loops in the threads of one process, with health checks, a watchdog and one shutdown."""

from __future__ import annotations

import faulthandler
import inspect
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import FrameType
from typing import Any, Protocol, Self, runtime_checkable

from redrive.broker.broker import Broker
from redrive.errors import Closed, InvalidInput, RedriveError
from redrive.mailbox.group_worker import GroupWorker
from redrive.mailbox.mailbox import Mailbox
from redrive.mailbox.mailbox_errors import InvalidParameterError
from redrive.mailbox.message_loop import MessageLoop, Turns
from redrive.model.exception import plain_name, safe_str
from redrive.telemetry import events
from redrive.worker.in_flight import InFlightLog
from redrive.worker.ipc import WorkerLaunch
from redrive.worker.program import WorkerProgram, refuse_options

HUNG_EXIT_CODE = 70
"""The exit code of a process that the watchdog ends."""
DEFAULT_DLQ_THRESHOLD = 100
SIGNAL_SECONDS = 0.5
"""The longest time until a signal is noticed."""
_OTHER_OPTIONS = {
    "--url": "its mailboxes name their store; the module can take it from a variable: connect(os.environ['MAIL'])",
    "--queue": "its loops name their mailboxes; make another group of those to run",
    "--concurrency": "each loop handles one message at a time; put more loops on a mailbox into the group",
    "--processes": "each process runs all loops; to run several, run the command several times",
    "--until-idle": "its loops wait for messages until they are stopped; in a test, take loop.run(max_iterations=1)",
}
"""Options of `redrive work` that only apps accept, and the alternative for a group."""
_log = events.logger("redrive.mailbox")


@runtime_checkable
class Runnable(Protocol):
    """What a group runs beside loops on mailboxes: any object with these three. With a `heartbeat`, as loops have, its
    progress is watched."""

    @property
    def running(self) -> bool:
        """True while a thread is in `run`."""

    def run(self) -> object:
        """Run until `shutdown`."""

    def shutdown(self, *, timeout: float) -> object:
        """Ask `run` to return, and wait for that up to `timeout` seconds. Called again after a time-out."""


def _exit() -> None:
    faulthandler.dump_traceback()
    os._exit(HUNG_EXIT_CODE)


class LoopGroup(WorkerProgram):
    """Several loops, each in a thread, until one shutdown or SIGTERM ends all. `redrive work module:group` runs a group
    with a supervisor.

    health_port: the port on `health_host` for GET /health/live and /health/ready. Live: every loop made progress within
    `watchdog_threshold` seconds. Ready: every loop runs. Both report `degraded` while a dead-letter mailbox of `dlq`
    has `dlq_threshold` messages or more, or cannot be read.
    watchdog_threshold: seconds without progress after which a loop is considered hung; the process then exits with code
    70 and the tracebacks of all threads, and its supervisor restarts it. None: no watchdog.
    """

    CHANGE_OF_STORE = "make its mailboxes on a file or a server, as in connect('sqlite:///mail.db')"

    def __init__(
        self,
        loops: Sequence[MessageLoop[Any, Any] | Runnable],
        *,
        shutdown_timeout: float = 30,
        health_port: int | None = None,
        health_host: str = "127.0.0.1",
        watchdog_threshold: float | None = 720,
        watchdog_interval: float = 60,
        dlq: Sequence[Mailbox[Any, Any]] = (),
        dlq_threshold: int = DEFAULT_DLQ_THRESHOLD,
        terminate: Callable[[], None] = _exit,
    ) -> None:
        if not loops:
            raise InvalidParameterError("loops", loops, "a list of one loop or more")
        self.loops = tuple(loop for loop in loops if isinstance(loop, MessageLoop))
        self._others = tuple(_checked(loop) for loop in loops if not isinstance(loop, MessageLoop))
        turns = Turns()
        for loop in self.loops:
            loop._turns = turns
        self._shutdown_timeout = shutdown_timeout
        self._health_address = None if health_port is None else (health_host, health_port)
        self._threshold = watchdog_threshold
        self._interval = watchdog_interval
        self._dlq = tuple(dlq)
        self._dlq_threshold = dlq_threshold
        self._terminate = terminate
        self._before_terminate: Callable[[Sequence[MessageLoop[Any, Any] | Runnable]], None] = lambda hung: None
        self._end = threading.Event()
        self._is_signalled = False
        self._errors: list[BaseException] = []
        self._server: ThreadingHTTPServer | None = None

    @property
    def health_port(self) -> int | None:
        """The port of the health checks while the group runs, else None."""
        return None if self._server is None else self._server.server_address[1]

    @property
    def brokers(self) -> Sequence[Broker]:
        """The brokers of its loops, without duplicates."""
        return tuple({loop.mailbox._core: loop.mailbox._broker for loop in self.loops}.values())

    def make_worker(self, launch: WorkerLaunch, in_flight_log: InFlightLog | None) -> GroupWorker:
        """Return the worker that `redrive work` runs."""
        refuse_options(launch, "a LoopGroup", _OTHER_OPTIONS)
        if not self.loops:
            raise InvalidInput("redrive work runs groups with a loop on a mailbox; run this one with group.run()")
        if in_flight_log is not None and len(self.loops) > in_flight_log.slots:
            raise InvalidInput(
                f"a process runs up to {in_flight_log.slots} loops, not {len(self.loops)}; make two groups"
            )
        return GroupWorker(self, launch, in_flight_log)

    def run(self) -> None:
        """Run all loops until `shutdown`, SIGTERM or SIGINT. Raises the first error of a loop, after all loops have
        stopped, and InvalidInput after `shutdown`. Signals are handled in the main thread only."""
        if self._end.is_set():
            raise InvalidInput("the group of loops was shut down; make another one")
        before = self._handle_signals()
        try:
            self.prepare()
            self._run(self.shutdown)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def prepare(self) -> None:
        """Call `prepare` of all loops, before any of them receives. Raises the first error."""
        for loop in self.loops:
            loop.prepare()

    def shutdown(self, *, timeout: float | None = None) -> bool:
        """Stop all loops. Returns whether all ended within `timeout` seconds (by default `shutdown_timeout`)."""
        self._end.set()
        for loop in self._all:
            self._stop(loop, 0)
        until = time.monotonic() + (self._shutdown_timeout if timeout is None else timeout)
        return all([self._stop(loop, max(0.0, until - time.monotonic())) for loop in self._all])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()

    def health(self) -> dict[str, Any]:
        """Return the report of a health check."""
        dlq = [self._depth(mailbox) for mailbox in self._dlq]
        degraded = any(each["depth"] is None or each["depth"] >= self._dlq_threshold for each in dlq)
        report: dict[str, Any] = {
            "status": "degraded" if degraded else "healthy",
            "loops": [
                {
                    "mailbox" if isinstance(loop, MessageLoop) else "loop": _name(loop),
                    "running": bool(loop.running),
                    "idle_seconds": None if (idle := _idle_seconds(loop)) is None else round(idle, 3),
                }
                for loop in self._all
            ],
        }
        if dlq:
            report["dlq"] = dlq[0] if len(dlq) == 1 else dlq
        return report

    @property
    def is_alive(self) -> bool:
        """True if every loop made progress within `watchdog_threshold` seconds, or if there is no watchdog."""
        return all(self._makes_progress(loop) for loop in self._all)

    @property
    def is_ready(self) -> bool:
        """True if every loop runs."""
        return all(loop.running for loop in self._all)

    @property
    def _all(self) -> tuple[MessageLoop[Any, Any] | Runnable, ...]:
        return (*self.loops, *self._others)

    def _makes_progress(self, loop: MessageLoop[Any, Any] | Runnable) -> bool:
        idle = _idle_seconds(loop)
        return self._threshold is None or idle is None or idle < self._threshold

    def _stop(self, loop: MessageLoop[Any, Any] | Runnable, timeout: float) -> bool:
        """Stop a loop. One that cannot be stopped keeps none of the others."""
        try:
            loop.shutdown(timeout=timeout)
        except Exception as error:
            _log.error("loop_failed", mailbox=_name(loop), error_type=plain_name(error), error=safe_str(error))
        return not loop.running

    def _depth(self, mailbox: Mailbox[Any, Any]) -> dict[str, Any]:
        try:
            depth: int | None = mailbox.approximate_count()
        except RedriveError:
            depth = None
        return {"name": mailbox.name, "depth": depth, "threshold": self._dlq_threshold}

    def _run(self, stop: Callable[[], object]) -> None:
        """Serve health checks and run all loops until the end is set or a loop fails; then call `stop`."""
        threads = [
            threading.Thread(target=self._run_loop, args=(loop,), name="redrive-loop", daemon=True)
            for loop in self._all
        ]
        self._serve_health()
        try:
            if not self._end.is_set():
                for thread in threads:
                    thread.start()
                self._watch(threads)
            stop()
        finally:
            if self._server is not None:
                self._server.shutdown()
                self._server.server_close()
                self._server = None
        if self._errors:
            raise self._errors[0]

    def _run_loop(self, loop: MessageLoop[Any, Any] | Runnable) -> None:
        try:
            loop._run() if isinstance(loop, MessageLoop) else loop.run()
        except BaseException as error:
            if isinstance(error, Closed) and self._end.is_set():
                return  # the shutdown timed out, and the broker of the loop was closed
            _log.error("loop_failed", mailbox=_name(loop), error_type=plain_name(error), error=safe_str(error))
            self._errors.append(error)
            self._end.set()

    def _watch(self, threads: Sequence[threading.Thread]) -> None:
        """Wait for the end. Terminate the process if a loop hangs."""
        while not self._wait(self._interval) and any(thread.is_alive() for thread in threads):
            hung = [loop for loop in self._all if loop.running and not self._makes_progress(loop)]
            for loop in hung:
                _log.error("loop_hung", mailbox=_name(loop), idle_seconds=round(_idle_seconds(loop) or 0))
            if hung:
                self._before_terminate(hung)
                self._terminate()
                return

    def _wait(self, seconds: float) -> bool:
        """Wait up to `seconds` for the end, in slices, as a signal just before a wait does not interrupt it."""
        until = time.monotonic() + seconds
        while not self._end.wait(min(SIGNAL_SECONDS, max(0.0, until - time.monotonic()))):
            if self._is_signalled or time.monotonic() >= until:
                return self._is_signalled
        return True

    def _handle_signals(self) -> dict[int, Any]:
        if threading.current_thread() is not threading.main_thread():
            return {}

        def stop(number: int, frame: FrameType | None) -> None:
            self._is_signalled = True  # instead of the event, whose lock this thread may hold now

        return {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}

    def _serve_health(self) -> None:
        if self._health_address is None:
            return
        group = self

        class Handler(BaseHTTPRequestHandler):
            """The handler of health checks."""

            def do_GET(self) -> None:
                """Answer a health check."""
                checks = {"/health/live": lambda: group.is_alive, "/health/ready": lambda: group.is_ready}
                check = checks.get(self.path)
                status = 404 if check is None else 200 if check() else 503
                report = {"status": "unknown path"} if check is None else group.health()
                body = json.dumps(report if status != 503 else {**report, "status": "unhealthy"}).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Log nothing, as checks come every few seconds."""

        try:
            self._server = ThreadingHTTPServer(self._health_address, Handler)
        except OSError as error:
            host, port = self._health_address
            raise InvalidInput(
                f"health checks cannot be served on {host}:{port}: {error}; each process needs a separate port"
            ) from error
        threading.Thread(target=self._server.serve_forever, name="redrive-health", daemon=True).start()


def _checked(loop: Runnable) -> Runnable:
    if not isinstance(loop, Runnable) or inspect.iscoroutinefunction(loop.run):
        raise InvalidParameterError(
            "a loop of the group", loop, "a loop on a mailbox, or an object with run(), shutdown(timeout=…) and running"
        )
    return loop


def _name(loop: MessageLoop[Any, Any] | Runnable) -> str:
    return loop.mailbox.name if isinstance(loop, MessageLoop) else type(loop).__name__


def _idle_seconds(loop: MessageLoop[Any, Any] | Runnable) -> float | None:
    """Return the seconds since its last progress, or None for an object without a heartbeat."""
    elapsed = getattr(getattr(loop, "heartbeat", None), "elapsed", None)
    return None if elapsed is None else elapsed()
